//go:build !portable

package proxy

import (
	"errors"
	"io"
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

// A loop carries the bytes of many sessions in one goroutine: it waits for all
// their sockets at once, and what one side sent is read into the loop's one
// buffer, judged and written to the other side before the next is looked at. A
// quiet session holds no goroutine and no buffer.
//
// Sockets are level-triggered. Where a side doesn't take what is to be sent to
// it, the rest is kept, and the other side isn't read until it is gone; so what
// is kept for a session is bounded by one buffer and one message.
//
// Where a side is encrypted, what was read is opened before it is judged, and what is
// to be written is sealed, in the loop's buffers as well.
type loop struct {
	epoll   int
	event   int    // eventfd that wakes the loop for its inbox
	buf     []byte // what was read, opened
	sealed  []byte // what was read or is to be sent, encrypted
	joined  []byte // what goes into one record, or a few full ones
	list    [][]byte
	vectors []unix.Iovec
	out     session.Out
	sides   []*side // by descriptor
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
func (l *loop) closeLingering() int {
	if len(l.lingering) == 0 {
		return -1
	}
	now := time.Now()
	for len(l.lingering) > 0 {
		p := l.lingering[0]
		if left := p.lingers.Sub(now); p.client.fd >= 0 && left > 0 {
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
	next atomic.Uint32 // whose turn it is
}

// start starts as many loops as threads of Go may run, halved: a loop and what it
// wakes in the kernel keep two cores busy.
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

// stop returns when all loops have ended.
func (ls *loops) stop() {
	for _, l := range ls.all {
		l.stop()
	}
}

// carry hands the session over to a loop. What the client and the server have sent
// already is in the buffers.
func (c *conn) carry(fromClient, fromServer *buffer) {
	ls := &c.server.loops
	l := ls.all[int(ls.next.Add(1))%len(ls.all)]
	if err := l.adopt(c, fromClient, fromServer); err != nil {
		c.log.Error("cannot continue a session: too few file descriptors; raise their limit (ulimit -n, LimitNOFILE=)", "error", err)
		refuse(c.client, wire.Error{Code: "53000", Message: "the proxy has not enough file descriptors", Hint: "The proxy's log says more."})
		c.hangUp()
	}
}

// adopt takes the session's sockets over and carries it until either side ends. If
// there is an error, the session is still the caller's.
func (l *loop) adopt(c *conn, fromClient, fromServer *buffer) error {
	p := &pair{c: c, loop: l}
	clientSocket, err := p.client.take(c.client)
	if err != nil {
		return err
	}
	serverSocket, err := p.server.take(c.up)
	if err != nil {
		_ = unix.Close(p.client.fd)
		return err
	}
	p.client.p, p.client.kept = p, *fromClient
	p.server.p, p.server.kept, p.server.server = p, *fromServer, true
	c.withCore(func(*session.Session) {
		// Nobody but the loop touches either side from here on, and begin is the first
		// to do so.
		for _, s := range []*side{&p.client, &p.server} {
			if s.tls != nil {
				s.tls.Detach()
			}
		}
		c.driver = p
		l.post(func() { p.guard(p.begin) })
	})
	_ = clientSocket.Close()
	_ = serverSocket.Close()
	return nil
}

// watches notes whose a descriptor is.
func (l *loop) watches(s *side) {
	if missing := s.fd + 1 - len(l.sides); missing > 0 {
		l.sides = append(l.sides, make([]*side, missing)...)
	}
	l.sides[s.fd] = s
}

// take takes a connection's socket over, by a descriptor that the runtime's poller
// doesn't know. The caller closes what it returns, which is of no use any more.
func (s *side) take(conn net.Conn) (net.Conn, error) {
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

// ready handles what happened to a socket.
func (l *loop) ready(s *side, events uint32) {
	defer func() {
		if r := recover(); r != nil {
			s.p.c.panicked(r)
			s.p.hangUp()
		}
	}()
	const broken = unix.EPOLLHUP | unix.EPOLLERR
	if s.events&unix.EPOLLOUT != 0 && events&(unix.EPOLLOUT|broken) != 0 {
		s.p.resume(s)
	}
	if s.events&unix.EPOLLIN == 0 || events&(unix.EPOLLIN|broken) == 0 {
		return
	}
	switch read, err := l.read(s); {
	case err != nil:
		s.p.gone(s, err)
	case len(read) == 0 && s.over == nil: // nothing was there, or not a whole record
	case s.server:
		s.p.fromServer(read)
	default:
		s.p.fromClient(read)
	}
}

// read reads what a socket has now, and opens it. What was kept of the side's input
// is in the same memory, before it.
func (l *loop) read(s *side) ([]byte, error) {
	into := l.buf[:loopBuffer]
	switch {
	case s.tls != nil:
		into = l.sealed[:loopBuffer]
	case len(s.kept.bytes()) > 0:
		into = s.kept.room(1)
	}
	n, err := readNow(s.fd, into)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return nil, nil
	case err != nil:
		return nil, err
	case n == 0:
		return nil, io.EOF
	case s.tls != nil:
		return l.open(s, into[:n]), nil
	}
	return into[:n], nil
}

// open decrypts what was read from a side.
func (l *loop) open(s *side, received []byte) []byte {
	plain, answer, err := s.tls.Open(l.buf[:0], nil, received)
	l.buf = plain[:cap(plain)]
	s.over = err
	if len(answer) > 0 {
		l.list = append(l.list[:0], answer)
		l.flush(s)
	}
	if len(s.kept.bytes()) > 0 && len(plain) > 0 {
		room := s.kept.room(len(plain))
		return room[:copy(room, plain)]
	}
	return plain
}

// send sends what is in the loop's Out to a side, and keeps what it doesn't
// take. A side that was told that nothing more comes gets nothing: what the proxy has
// for it by itself must not cost it the client's last bytes.
func (l *loop) send(to *side) {
	if to.half {
		return
	}
	l.list = l.out.Buffers(l.list[:0])
	if len(l.list) > 0 && to.tls != nil {
		if err := l.seal(to); err != nil {
			to.p.lost(to)
			return
		}
	}
	l.flush(to)
}

// seal encrypts what is in the list. Joined, since each buffer would become a record
// of its own.
func (l *loop) seal(to *side) error {
	said := l.list[0]
	if len(l.list) > 1 {
		l.joined = l.joined[:0]
		for _, b := range l.list {
			l.joined = append(l.joined, b...)
		}
		said = l.joined
	}
	sealed, err := to.tls.Seal(l.sealed[:0], said)
	l.list = append(l.list[:0], sealed)
	l.sealed = sealed[:cap(sealed)]
	if len(sealed) > keepSealed {
		l.sealed, l.joined = make([]byte, loopBuffer), nil
	}
	return err
}

// keepSealed is the most memory that a loop keeps for what is encrypted.
const keepSealed = 4 * loopBuffer

// flush sends what is in the list to a side, and keeps what it doesn't take.
func (l *loop) flush(to *side) {
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
