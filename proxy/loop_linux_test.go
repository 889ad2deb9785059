//go:build !portable

package proxy

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stop returns when the loop's goroutine has ended: by then its descriptors are
// closed.
func TestALoopIsWaitedFor(t *testing.T) {
	for range 100 {
		l, err := newLoop()
		if err != nil {
			t.Fatal(err)
		}
		l.stop()
		for _, fd := range []int{l.epoll, l.event} {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
				t.Fatalf("after stop, descriptor %d is open: %v", fd, err)
			}
		}
	}
}

// A session whose client doesn't take its last bytes is closed when its time is up,
// by the loop itself: there is no timer that could outlive it.
func TestALingeringSessionIsClosed(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer l.stop()
	var ends [2][2]int // the proxy's and the peer's
	for i := range ends {
		if ends[i], err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(ends[i][1])
	}
	c := &conn{}
	c.once.Do(func() {}) // no server has counted it
	p := &pair{c: c, loop: l, over: true, lingers: time.Now().Add(20 * time.Millisecond)}
	p.client, p.server = side{p: p, fd: ends[0][0]}, side{p: p, fd: ends[1][0], server: true}
	l.post(func() { l.lingering = append(l.lingering, p) })
	for _, end := range ends {
		closed := []unix.PollFd{{Fd: int32(end[1]), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(closed, 30_000)
		for err == unix.EINTR {
			n, err = unix.Poll(closed, 30_000)
		}
		if n != 1 || err != nil {
			t.Errorf("a side is left open: %v", err)
		}
	}
	if left := time.Until(p.lingers); left > 0 {
		t.Errorf("it was closed %v before its time", left)
	}
}
