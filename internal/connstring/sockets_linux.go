package connstring

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// userTimeout returns a dialer's Control that sets TCP_USER_TIMEOUT, in milliseconds, behind another Control or nil.
func userTimeout(ms int, control func(string, string, syscall.RawConn) error) func(string, string, syscall.RawConn) error {
	return func(network, address string, c syscall.RawConn) error {
		if control != nil {
			if err := control(network, address, c); err != nil {
				return err
			}
		}
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = os.NewSyscallError("setsockopt TCP_USER_TIMEOUT", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms))
		})
		return errors.Join(err, failed)
	}
}
