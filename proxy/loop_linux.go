//go:build !portable

package proxy

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/proxy/internal/secure"
	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// loop carries the bytes of many sessions in one goroutine. It waits for all their
// sockets by epoll. It reads from one side into the loop's only buffer, passes the bytes
// to the session's core, and writes the result to the other side before it reads the next
// socket. So a quiet session has no goroutine and no buffer.
//
// Epoll is level-triggered. If a socket doesn't take all bytes, the loop keeps the rest
// and doesn't read the other side until they are sent; so one buffer and one message
// bound the memory of a session.
//
// Bytes of a TLS side are decrypted after the read and encrypted before the write, in the
// loop's buffers too.
type loop struct {
	epoll   int
	event   int    // eventfd that wakes the loop for its inbox
	buf     []byte // plaintext that was read
	sealed  []byte // ciphertext that was read or is to be sent
	joined  []byte // the buffers joined, for TLS
	buffers [][]byte
	vectors []unix.Iovec
	out     session.Out
	sides   []*side // by descriptor
	// lingering are sessions that end when their clients have taken the last bytes, or
	// after lingerTime; ordered by that time.
	lingering []*pair

	mu     sync.Mutex
	inbox  []func()
	closed bool
	ended  chan struct{} // closed when run has returned
}

const loopBuffer = 64 << 10

// newLoop starts a loop that runs until stop.
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
	l := &loop{epoll: epoll, event: event, buf: make([]byte, loopBuffer), sealed: make([]byte, loopBuffer),
		ended: make(chan struct{})}
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

// post has the loop call f soon. It returns false after stop.
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

// stop ends the loop and waits for it. Its sessions must have ended.
func (l *loop) stop() {
	l.post(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closed = true
	})
	<-l.ended
}

func (l *loop) run() {
	// Each epoll_wait may cost the loop its P. With a thread of its own it is likely to
	// continue on the same core, with warm caches.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	events := make([]unix.EpollEvent, 128)
	for !l.closed {
		n, err := unix.EpollWait(l.epoll, events, l.closeLingering())
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(os.NewSyscallError("epoll_wait", err)) // the descriptor is ours: a bug
		}
		for i := range max(n, 0) {
			e := &events[i]
			if int(e.Fd) == l.event {
				l.runInbox()
				continue
			}
			// Nil for a session that ended in this round.
			if s := l.sides[e.Fd]; s != nil {
				l.handleEvents(s, e.Events)
			}
		}
	}
	_ = unix.Close(l.epoll)
	_ = unix.Close(l.event)
}

// closeLingering closes the sessions whose lingerTime is over. It returns the
// milliseconds until the next one, -1 for none: the timeout of epoll_wait.
func (l *loop) closeLingering() int {
	if len(l.lingering) == 0 {
		return -1
	}
	now := time.Now()
	for len(l.lingering) > 0 {
		p := l.lingering[0]
		if left := p.lingersUntil.Sub(now); p.client.fd >= 0 && left > 0 {
			return int(left/time.Millisecond) + 1
		}
		l.lingering[0] = nil
		l.lingering = l.lingering[1:]
		p.guard(p.hangUp)
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

// loops carry the sessions of a server.
type loops struct {
	all  []*loop
	next atomic.Uint32 // counts the sessions, for round-robin
}

// start starts one loop for two of GOMAXPROCS: a loop and the kernel's work for it keep
// two cores busy.
func (ls *loops) start() error {
	for range (runtime.GOMAXPROCS(0) + 1) / 2 {
		l, err := newLoop()
		if err != nil {
			return err
		}
		ls.all = append(ls.all, l)
	}
	return nil
}

// stop ends all loops and waits for them.
func (ls *loops) stop() {
	for _, l := range ls.all {
		l.stop()
	}
}

// drive hands the session over to a loop. The buffers hold bytes that the client and the
// server have sent already.
func (c *conn) drive(fromClient, fromServer *buffer) {
	ls := &c.server.loops
	l := ls.all[int(ls.next.Add(1))%len(ls.all)]
	if err := l.adopt(c, fromClient, fromServer); err != nil {
		c.log.Error("cannot continue a session: too few file descriptors; raise their limit (ulimit -n, LimitNOFILE=)", "error", err)
		refuse(c.client, wire.Error{Code: "53000", Message: "the proxy has too few file descriptors", Hint: "See the proxy's log."})
		c.hangUp()
	}
}

// adopt takes ownership of the session and its sockets. On an error or a panic the caller keeps
// it: the core may have failed before.
func (l *loop) adopt(c *conn, fromClient, fromServer *buffer) error {
	p := &pair{c: c, loop: l}
	clientSocket, err := p.client.takeSocket(c.client)
	if err != nil {
		return err
	}
	adopted := false
	defer func() {
		if !adopted {
			_ = unix.Close(p.client.fd)
		}
	}()
	serverSocket, err := p.server.takeSocket(c.up)
	if err != nil {
		return err
	}
	defer func() {
		if !adopted {
			_ = unix.Close(p.server.fd)
		}
	}()
	p.client.p, p.client.unused = p, *fromClient
	p.server.p, p.server.unused, p.server.server = p, *fromServer, true
	c.withCore(func(*session.Session) {
		// From here on only the loop uses the connections, from begin on.
		for _, s := range []*side{&p.client, &p.server} {
			if s.tls != nil {
				s.tls.Detach()
			}
		}
		c.driver = p
		l.post(func() { p.guard(p.begin) })
		adopted = true
	})
	_ = clientSocket.Close()
	_ = serverSocket.Close()
	return nil
}

// registerSide enters a side under its descriptor.
func (l *loop) registerSide(s *side) {
	if missing := s.fd + 1 - len(l.sides); missing > 0 {
		l.sides = append(l.sides, make([]*side, missing)...)
	}
	l.sides[s.fd] = s
}

// takeSocket duplicates the connection's descriptor, so that Go's poller doesn't know it.
// The caller closes the socket that it returns, which nothing uses any more.
func (s *side) takeSocket(conn net.Conn) (net.Conn, error) {
	s.tls, _ = conn.(*secure.Conn)
	if s.tls != nil {
		conn = s.tls.Socket()
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var dup error
	if err := raw.Control(func(old uintptr) {
		s.fd, dup = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return nil, err
	}
	return conn, os.NewSyscallError("fcntl", dup)
}

// handleEvents handles the epoll events of a socket.
func (l *loop) handleEvents(s *side, events uint32) {
	defer func() {
		if r := recover(); r != nil {
			s.p.c.reportPanic(r)
			s.p.hangUp()
		}
	}()
	const broken = unix.EPOLLHUP | unix.EPOLLERR
	if s.watched&unix.EPOLLOUT != 0 && events&(unix.EPOLLOUT|broken) != 0 {
		s.p.handleWritable(s)
	}
	if s.watched&unix.EPOLLIN == 0 || events&(unix.EPOLLIN|broken) == 0 {
		return
	}
	switch read, err := l.read(s); {
	case err != nil:
		s.p.handleReadEnd(s, err)
	case len(read) == 0 && s.tlsErr == nil: // no bytes, or no complete TLS record
	case s.server:
		s.p.fromServer(read)
	default:
		s.p.fromClient(read)
	}
}
