//go:build !linux

package main

import "time"

// monotonic is for systemd, which is on Linux alone.
func monotonic() time.Duration { return 0 }
