package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is the time by the clock that systemd compares.
func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // which can't fail
	return time.Duration(now.Nano())
}
