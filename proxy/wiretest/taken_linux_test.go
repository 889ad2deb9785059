package wiretest

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/internal/stack"
)

// untilRead waits until the other side of a Unix socket has read what was
// written, so that the next write can't be read together with it.
func untilRead(conn net.Conn) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	for began := time.Now(); time.Since(began) < stack.Patience; {
		left := 0
		err := raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err != nil || left == 0 {
			return
		}
		// Others need the processor for what is waited for.
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}
