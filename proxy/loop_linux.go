package proxy

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// A loop carries the bytes of many sessions in one goroutine: it waits for all
// their sockets at once, and what one side sent is read into the loop's one
// buffer, judged and written to the other side before the next is looked at. A
// quiet session holds no goroutine and no buffer.
//
// Sockets are level-triggered. Where a side doesn't take what is to be sent to
// it, the rest is kept, and the other side isn't read until it is gone; so what
// is kept for a session is bounded by one buffer and one message.
type loop struct {
	epoll   int
	event   int // eventfd that wakes the loop for its inbox
	buf     []byte
	list    [][]byte
	vectors []unix.Iovec
	out     session.Out
	sides   map[int32]*side
	// lingering are sessions that are closed when their clients have got the last
	// bytes, or when their time is up; the one whose time is up next comes first.
	lingering []*pair

	mu     sync.Mutex
	inbox  []func()
	closed bool
	ended  chan struct{} // closed when run has returned
}

const loopBuffer = 64 << 10

// newLoop starts a loop, which runs until stop.
func newLoop() (*loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	l := &loop{epoll: epoll, event: event, buf: make([]byte, loopBuffer), sides: map[int32]*side{}, ended: make(chan struct{})}
	err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(event)})
	if err != nil {
		_ = unix.Close(epoll)
		_ = unix.Close(event)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	go func() {
		defer close(l.ended)
		l.run()
	}()
	return l, nil
}

// post runs f in the loop, soon. It reports whether it will.
func (l *loop) post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.inbox = append(l.inbox, f)
	if len(l.inbox) == 1 {
		_, _ = unix.Write(l.event, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return true
}

// stop ends the loop and returns when it has ended. Its sessions must have ended.
func (l *loop) stop() {
	l.post(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closed = true
	})
	<-l.ended
}

func (l *loop) run() {
	// Each wait may cost the loop its processor. On a thread of its own it at
	// least goes on where it was, with what that core has in its caches.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	events := make([]unix.EpollEvent, 128)
	for !l.closed {
		n, err := unix.EpollWait(l.epoll, events, l.closeLingering(time.Now()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(os.NewSyscallError("epoll_wait", err)) // the descriptor is ours: a bug
		}
		for i := range max(n, 0) {
			e := &events[i]
			if int(e.Fd) == l.event {
				l.runInbox()
				continue
			}
			// A session that ended in this round may be in the list still.
			if s := l.sides[e.Fd]; s != nil {
				l.ready(s, e.Events)
			}
		}
	}
	_ = unix.Close(l.epoll)
	_ = unix.Close(l.event)
}

// closeLingering closes the sessions that have lingered long enough, and returns
// in how many milliseconds it is to be called again; -1 if none is left.
func (l *loop) closeLingering(now time.Time) int {
	for len(l.lingering) > 0 {
		p := l.lingering[0]
		if left := p.lingers.Sub(now); p.client.fd >= 0 && left > 0 {
			return int(left/time.Millisecond) + 1
		}
		l.lingering[0] = nil
		l.lingering = l.lingering[1:]
		p.guard(p.close)
	}
	l.lingering = nil
	return -1
}

func (l *loop) runInbox() {
	var drain [8]byte
	_, _ = unix.Read(l.event, drain[:])
	l.mu.Lock()
	todo := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for _, f := range todo {
		f()
	}
}

// adopt takes the session's sockets over and carries it until either side ends.
// What the client or the server had sent already is in the buffers. ok is false
// if the session is still the caller's.
func (l *loop) adopt(c *conn, fromClient, fromServer *buffer) (ok bool) {
	client, err := takeFD(c.client)
	if err != nil {
		return false
	}
	server, err := takeFD(c.up)
	if err != nil {
		_ = unix.Close(client)
		return false
	}
	p := &pair{c: c, loop: l}
	p.client = side{p: p, fd: client, kept: *fromClient}
	p.server = side{p: p, fd: server, server: true, kept: *fromServer}
	if !l.post(func() { p.guard(p.begin) }) {
		_ = unix.Close(client)
		_ = unix.Close(server)
		return false
	}
	_ = c.client.Close()
	_ = c.up.Close()
	return true
}

// takeFD returns a descriptor of a connection's socket that the runtime's poller
// doesn't know.
func takeFD(conn net.Conn) (int, error) {
	plain, ok := conn.(syscall.Conn)
	if !ok {
		return -1, errors.New("the connection is more than a socket") // TLS
	}
	raw, err := plain.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dup error
	if err := raw.Control(func(old uintptr) {
		fd, dup = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return -1, err
	}
	if dup != nil {
		return -1, os.NewSyscallError("fcntl", dup)
	}
	return fd, nil
}

// ready handles what happened to a socket.
func (l *loop) ready(s *side, events uint32) {
	defer func() {
		if r := recover(); r != nil {
			s.p.c.panicked(r)
			s.p.close()
		}
	}()
	const broken = unix.EPOLLHUP | unix.EPOLLERR
	if s.events&unix.EPOLLOUT != 0 && events&(unix.EPOLLOUT|broken) != 0 {
		s.p.resume(s)
	}
	if s.events&unix.EPOLLIN == 0 || events&(unix.EPOLLIN|broken) == 0 {
		return
	}
	into := l.buf
	if len(s.kept.bytes()) > 0 {
		s.kept.makeRoom()
		into = s.kept.b[s.kept.w:]
	}
	n, err := readNow(s.fd, into)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
	case err != nil || n == 0:
		s.p.gone(s, err)
	case s.server:
		s.p.fromServer(into[:n])
	default:
		s.p.fromClient(into[:n])
	}
}

// send sends what is in the loop's Out to a side, and keeps what it doesn't
// take.
func (l *loop) send(to *side) {
	l.list = l.out.Buffers(l.list[:0])
	if len(l.list) == 0 {
		return
	}
	if len(to.unsent) > 0 {
		for _, b := range l.list {
			to.unsent = append(to.unsent, b...)
		}
		return
	}
	n, err := l.write(to.fd)
	if err != nil && err != unix.EAGAIN {
		to.p.lost(to)
		return
	}
	for _, b := range l.list {
		if n >= len(b) {
			n -= len(b)
			continue
		}
		to.unsent = append(to.unsent, b[n:]...)
		n = 0
	}
	if len(to.unsent) > 0 {
		to.p.watchWrite(to, true)
	}
}

func (l *loop) write(fd int) (n int, err error) {
	for {
		if len(l.list) == 1 {
			n, err = writeNow(fd, l.list[0])
		} else {
			n, err = writevNow(fd, l.list, &l.vectors)
		}
		if err != unix.EINTR {
			return n, err
		}
	}
}
