package proxy

import (
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const hasSocketOptions = true

func setUserTimeout(fd int, d time.Duration) error {
	return os.NewSyscallError("setsockopt TCP_USER_TIMEOUT", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds())))
}

// userTimeout returns the socket's TCP_USER_TIMEOUT, 0 for the system's default.
func userTimeout(fd int) time.Duration {
	ms, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	if err != nil {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

func setReusePort(fd int) error {
	return os.NewSyscallError("setsockopt SO_REUSEPORT", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
}

// takeBacklog accepts the connections in the backlog, which closing the listener would
// reset, and shuts the listener down. No other goroutine may accept meanwhile.
func takeBacklog(l syscall.Conn, take func(net.Conn)) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		for {
			client, _, err := unix.Accept4(int(fd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if err == unix.EINTR || err == unix.ECONNABORTED {
				continue
			}
			if err != nil {
				// EAGAIN: the backlog is empty. A connection between the two calls is reset.
				_ = unix.Shutdown(int(fd), unix.SHUT_RD)
				return
			}
			file := os.NewFile(uintptr(client), "client")
			conn, err := net.FileConn(file)
			_ = file.Close()
			if err == nil {
				take(conn)
			}
		}
	})
}
