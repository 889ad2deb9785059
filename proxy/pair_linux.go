//go:build !portable

package proxy

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/proxy/internal/secure"
)

// side is one socket of a session in a loop. All is used by the loop alone.
type side struct {
	p      *pair
	fd     int
	server bool
	tls    *secure.Conn // nil: the side is not encrypted
	kept   buffer       // input of which a message was not complete, or that is held
	unsent []byte       // output that the socket didn't take
	events uint32       // what the loop waits for
	eof    bool         // nothing more is read
	half   bool         // nothing more is sent, once unsent is
	over   error        // nothing more comes, says TLS: io.EOF, or what is wrong
}

// pair is a session in a loop.
type pair struct {
	c              *conn
	loop           *loop
	client, server side
	over           bool      // both are closed when the client has got the rest
	lingers        time.Time // until when the client may take the rest
}

// guard runs f; a panic ends the session only.
func (p *pair) guard(f func()) {
	defer func() {
		if r := recover(); r != nil {
			p.c.panicked(r)
			p.hangUp()
		}
	}()
	f()
}

// begin runs in the loop.
func (p *pair) begin() {
	p.loop.watches(&p.client)
	p.loop.watches(&p.server)
	p.fromServer(p.ahead(&p.server))
	p.fromClient(p.ahead(&p.client))
}

// ahead returns what TLS has read before the loop took the side over.
func (p *pair) ahead(s *side) []byte {
	if s.tls == nil || p.over {
		return nil
	}
	return p.loop.open(s, nil)
}

func (p *pair) nudge()  { p.post(func() { p.fromServer(nil) }) }
func (p *pair) send()   { p.post(func() { p.fromClient(nil) }) }
func (p *pair) hasten() {} // the loop waits for no side
func (p *pair) close()  { p.post(p.hangUp) }

func (p *pair) post(f func()) { p.loop.post(func() { p.guard(f) }) }

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
	used, held, ended, done := p.c.fromClient(in, &p.loop.out)
	p.loop.send(&p.server)
	p.client.keep(in, used)
	if ended {
		p.end()
		return
	}
	if done {
		p.clientEnded()
		return
	}
	reading := !held && !p.client.eof && len(p.server.unsent) == 0
	if p.client.tls != nil {
		// What it sends may make TLS answer. PostgreSQL, too, reads nothing of a client that
		// doesn't take what it is sent. A server is read on: it may be waiting for just that.
		reading = reading && len(p.client.unsent) == 0
	}
	p.watch(&p.client, reading)
	if reading && p.client.over != nil {
		p.gone(&p.client, p.client.over)
	}
}

// fromServer takes what the server sent to the client.
func (p *pair) fromServer(read []byte) {
	if p.over {
		return
	}
	in := p.server.input(read)
	used, wake, ended := p.c.fromServer(in, &p.loop.out)
	p.loop.send(&p.client)
	p.server.keep(in, used)
	if ended {
		p.end()
		return
	}
	reading := len(p.client.unsent) == 0
	p.watch(&p.server, reading)
	if wake {
		p.fromClient(nil)
	}
	if reading && p.server.over != nil {
		p.gone(&p.server, p.server.over)
	}
}

// resume sends on to a side that takes bytes again.
func (p *pair) resume(s *side) {
	if !p.push(s) {
		return
	}
	if p.over {
		p.hangUp()
		return
	}
	if !s.server {
		p.fromServer(nil)
	}
	p.fromClient(nil) // what was held back meanwhile
}

// push sends what was kept for a side, and reports whether all is sent.
func (p *pair) push(s *side) bool {
	if len(s.unsent) > 0 {
		n, err := writeNow(s.fd, s.unsent)
		if err != nil && err != unix.EAGAIN && err != unix.EINTR {
			p.lost(s)
			return false
		}
		s.unsent = s.unsent[max(n, 0):]
	}
	if len(s.unsent) > 0 {
		p.watchWrite(s, true)
		return false
	}
	s.unsent = nil
	p.watchWrite(s, false)
	if s.half {
		_ = unix.Shutdown(s.fd, unix.SHUT_WR)
	}
	return true
}

// conclude keeps the last that a side is sent, and that it is the last.
func (s *side) conclude(words []byte) {
	if s.tls == nil {
		s.unsent = append(s.unsent, words...)
		return
	}
	// What can't be sealed can't be sent: TLS has failed, of which the peer was told.
	if sealed, err := s.tls.Seal(s.unsent, words); err == nil {
		s.unsent, _ = s.tls.SealClose(sealed)
	}
}

// lost handles a side that takes no more bytes. A server may have said why:
// that is read on.
func (p *pair) lost(s *side) {
	s.unsent = nil
	if !s.server {
		p.hangUp()
		return
	}
	p.client.eof = true
	p.watchWrite(s, false)
	p.watch(&p.client, false)
}

// gone handles the end of what a side sends: io.EOF, or an error.
func (p *pair) gone(s *side, err error) {
	switch {
	case s.server:
		p.end()
	case err != io.EOF || p.over:
		p.hangUp()
	default:
		p.clientEnded()
	}
}

// clientEnded handles a client that sends no more, by its Terminate or the end of
// its stream: the server gets the end of the stream, too, behind what is under
// way to it. What the client asked for is still answered. A server that is told by
// a Terminate alone would wait for ever for the rest of one that is too long.
func (p *pair) clientEnded() {
	p.client.eof = true
	p.watch(&p.client, false)
	p.server.half = true
	p.server.conclude(nil)
	p.push(&p.server)
}

// end ends the session: the client gets what was on its way to it and the
// FATAL that is due, if any.
func (p *pair) end() {
	if p.over {
		return
	}
	p.over = true
	p.client.conclude(p.c.lastWords(nil))
	p.watch(&p.server, false)
	p.watch(&p.client, false)
	if p.push(&p.client) {
		p.hangUp()
		return
	}
	p.lingers = time.Now().Add(lingerTime)
	p.loop.lingering = append(p.loop.lingering, p)
}

// lingerTime is how long a client has to take the last bytes of its session.
const lingerTime = 10 * time.Second

// hangUp closes both sockets. It may be called twice.
func (p *pair) hangUp() {
	if p.client.fd < 0 {
		return
	}
	for _, s := range []*side{&p.client, &p.server} {
		if s.fd < len(p.loop.sides) {
			p.loop.sides[s.fd] = nil
		}
		if len(s.unsent) == 0 { // in the middle of a record nothing can be said
			if s.conclude(nil); len(s.unsent) > 0 {
				_, _ = writeNow(s.fd, s.unsent)
			}
		}
		_ = unix.Close(s.fd)
		s.fd, s.events, s.kept, s.unsent, s.tls = -1, 0, buffer{}, nil, nil
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
		p.c.log.Error("cannot watch a socket", "error", os.NewSyscallError("epoll_ctl", err))
		p.hangUp()
	}
}
