//go:build !linux

package lockclient

import "time"

// bootTime leaves the decision to the monotonic clock.
func bootTime() time.Duration { return 0 }
