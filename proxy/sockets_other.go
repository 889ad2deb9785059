//go:build !linux

package proxy

import (
	"errors"
	"net"
	"syscall"
	"time"
)

const hasSocketOptions = false

func setUserTimeout(int, time.Duration) error { return errors.ErrUnsupported }

func userTimeout(int) time.Duration { return 0 }

func setReusePort(int) error { return errors.ErrUnsupported }

// takeBacklog accepts nothing: closing the listener resets the backlog.
func takeBacklog(syscall.Conn, func(net.Conn)) error { return nil }
