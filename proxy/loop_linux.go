package proxy

import (
	"errors"
	"net"
	"os"
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
	epoll int
	event int // eventfd that wakes the loop for its inbox
	buf   []byte
	list  [][]byte
	out   session.Out
	sides map[int32]*side

	mu     sync.Mutex
	inbox  []func()
	closed bool
}

// side is one socket of a session in a loop. All is used by the loop alone.
type side struct {
	p      *pair
	fd     int
	server bool
	kept   buffer // input of which a message was not complete, or that is held
	unsent []byte // output that the socket didn't take
	events uint32 // what the loop waits for
	eof    bool   // nothing more is read
	half   bool   // nothing more is sent, once unsent is
}

// pair is a session in a loop.
type pair struct {
	c              *conn
	loop           *loop
	client, server side
	over           bool // both are closed when the client has got the rest
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
	l := &loop{epoll: epoll, event: event, buf: make([]byte, loopBuffer), sides: map[int32]*side{}}
	err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(event)})
	if err != nil {
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	go l.run()
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

// stop ends the loop. Its sessions must have ended.
func (l *loop) stop() {
	l.post(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closed = true
	})
}

func (l *loop) run() {
	events := make([]unix.EpollEvent, 128)
	for !l.closed {
		n, err := unix.EpollWait(l.epoll, events, -1)
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
	raw, err := conn.(syscall.Conn).SyscallConn()
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

// guard runs f; a panic ends the session only.
func (p *pair) guard(f func()) {
	defer func() {
		if r := recover(); r != nil {
			p.c.panicked(r)
			p.close()
		}
	}()
	f()
}

// begin runs in the loop.
func (p *pair) begin() {
	p.c.mu.Lock()
	p.c.nudge = func() { p.loop.post(func() { p.guard(func() { p.fromServer(nil) }) }) }
	p.c.mu.Unlock()
	p.loop.sides[int32(p.client.fd)] = &p.client
	p.loop.sides[int32(p.server.fd)] = &p.server
	p.fromServer(nil)
	p.fromClient(nil)
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
	n, err := unix.Read(s.fd, into)
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

// input returns all that the side has sent and that was not used: what was
// kept, with what was read behind it.
func (s *side) input(read []byte) []byte {
	if s.kept.b == nil || len(s.kept.bytes()) == 0 {
		return read
	}
	s.kept.w += len(read)
	return s.kept.bytes()
}

// keep keeps what was not used of the input.
func (s *side) keep(input []byte, used int) {
	if len(s.kept.bytes()) > 0 {
		s.kept.used(used)
		if len(s.kept.bytes()) == 0 {
			s.kept = buffer{}
		}
		return
	}
	if rest := input[used:]; len(rest) > 0 {
		s.kept = buffer{b: make([]byte, max(len(rest), smallBuffer)), w: len(rest)}
		copy(s.kept.b, rest)
	} else if s.kept.b != nil {
		s.kept = buffer{}
	}
}

// fromClient takes what the client sent to the server.
func (p *pair) fromClient(read []byte) {
	if p.over {
		return
	}
	in := p.client.input(read)
	p.c.mu.Lock()
	used := p.c.core.FromClient(in, &p.loop.out)
	held, ended := p.c.core.Held(), p.c.core.Farewell() != nil
	done := p.c.core.Done()
	p.c.mu.Unlock()
	p.loop.send(&p.server)
	p.client.keep(in, used)
	if ended {
		p.end()
		return
	}
	if done {
		p.client.eof = true
	}
	p.watch(&p.client, !held && !p.client.eof && len(p.server.unsent) == 0)
}

// fromServer takes what the server sent to the client.
func (p *pair) fromServer(read []byte) {
	if p.over {
		return
	}
	in := p.server.input(read)
	p.c.mu.Lock()
	used, wake := p.c.core.FromServer(in, &p.loop.out)
	if p.c.draining && p.c.core.Idle() {
		p.c.core.End(shutdownError)
	}
	ended := p.c.core.Farewell() != nil
	p.c.mu.Unlock()
	p.loop.send(&p.client)
	p.server.keep(in, used)
	if ended {
		p.end()
		return
	}
	p.watch(&p.server, len(p.client.unsent) == 0)
	if wake {
		p.fromClient(nil)
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
			n, err = unix.Write(fd, l.list[0])
		} else {
			n, err = unix.Writev(fd, l.list[:min(len(l.list), 1024)])
		}
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// resume sends on to a side that takes bytes again.
func (p *pair) resume(s *side) {
	n, err := unix.Write(s.fd, s.unsent)
	if err != nil && err != unix.EAGAIN && err != unix.EINTR {
		p.lost(s)
		return
	}
	if s.unsent = s.unsent[max(n, 0):]; len(s.unsent) > 0 {
		return
	}
	s.unsent = nil
	p.watchWrite(s, false)
	switch {
	case s.server:
		if s.half {
			_ = unix.Shutdown(s.fd, unix.SHUT_WR)
		}
		p.fromClient(nil) // what was held back meanwhile
	case p.over:
		p.close()
	default:
		p.fromServer(nil)
	}
}

// lost handles a side that takes no more bytes. A server may have said why:
// that is read on.
func (p *pair) lost(s *side) {
	s.unsent = nil
	if !s.server {
		p.close()
		return
	}
	p.client.eof = true
	p.watchWrite(s, false)
	p.watch(&p.client, false)
}

// gone handles the end of what a side sends: a clean one, or an error.
func (p *pair) gone(s *side, err error) {
	switch {
	case s.server:
		p.end()
	case err != nil || p.over:
		p.close()
	default:
		// The client sends no more; what it asked for is still answered.
		s.eof = true
		p.watch(s, false)
		p.server.half = true
		if len(p.server.unsent) == 0 {
			_ = unix.Shutdown(p.server.fd, unix.SHUT_WR)
		}
	}
}

// end ends the session: the client gets what was on its way to it and the
// FATAL that is due, if any.
func (p *pair) end() {
	if p.over {
		return
	}
	p.over = true
	p.c.mu.Lock()
	f := p.c.core.Farewell()
	p.c.mu.Unlock()
	if f != nil {
		p.client.unsent = f.Append(p.client.unsent)
	}
	p.watch(&p.server, false)
	p.watch(&p.client, false)
	if n, _ := unix.Write(p.client.fd, p.client.unsent); n > 0 {
		p.client.unsent = p.client.unsent[n:]
	}
	if len(p.client.unsent) == 0 {
		p.close()
		return
	}
	p.watchWrite(&p.client, true)
	time.AfterFunc(lingerTime, func() { p.loop.post(p.close) })
}

// lingerTime is how long a client has to take the last bytes of its session.
const lingerTime = 10 * time.Second

// close closes both sockets. It may be called twice.
func (p *pair) close() {
	if p.client.fd < 0 {
		return
	}
	for _, s := range []*side{&p.client, &p.server} {
		delete(p.loop.sides, int32(s.fd))
		_ = unix.Close(s.fd)
		s.fd, s.events, s.kept, s.unsent = -1, 0, buffer{}, nil
	}
	p.over = true
	p.c.finish()
}

// watch says whether a side is to be read.
func (p *pair) watch(s *side, read bool) {
	if read {
		p.setEvents(s, s.events|unix.EPOLLIN)
	} else {
		p.setEvents(s, s.events&^unix.EPOLLIN)
	}
}

func (p *pair) watchWrite(s *side, write bool) {
	if write {
		p.setEvents(s, s.events|unix.EPOLLOUT)
	} else {
		p.setEvents(s, s.events&^unix.EPOLLOUT)
	}
}

// setEvents tells the kernel what is waited for. A socket of which nothing is
// wanted is taken out: it would be reported again and again once it is broken.
func (p *pair) setEvents(s *side, events uint32) {
	if events == s.events || s.fd < 0 {
		return
	}
	op := unix.EPOLL_CTL_MOD
	switch {
	case events == 0:
		op = unix.EPOLL_CTL_DEL
	case s.events == 0:
		op = unix.EPOLL_CTL_ADD
	}
	s.events = events
	if err := unix.EpollCtl(p.loop.epoll, op, s.fd, &unix.EpollEvent{Events: events, Fd: int32(s.fd)}); err != nil {
		p.c.log.Error("a socket can't be watched", "error", os.NewSyscallError("epoll_ctl", err))
		p.close()
	}
}
