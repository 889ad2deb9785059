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

// userTimeout is 0 where the system decides.
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

// takeBacklog takes the connections that wait to be accepted, which closing the
// listener would reset, and lets no more come. Nobody may be accepting meanwhile.
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
				// EAGAIN: there is none. Who comes between the two calls is reset.
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
