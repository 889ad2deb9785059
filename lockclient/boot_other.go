//go:build !linux

package lockclient

import "time"

// bootTime returns 0, so the monotonic clock alone decides.
func bootTime() time.Duration { return 0 }
