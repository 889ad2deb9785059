//go:build !portable

package proxy

import (
	"bytes"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/proxy/internal/secure"
	"github.com/wirefence/wirefence/proxy/internal/session"
)

// side is one socket of a session in a loop. Only the loop uses it.
type side struct {
	p           *pair
	fd          int
	server      bool
	tls         *secure.Conn // nil without TLS
	unused      buffer       // input: an incomplete message, or one that the core holds back
	unsent      []byte       // output that the socket hasn't taken
	watched     uint32       // epoll events that the loop waits for
	eof         bool         // the stream has ended: nothing more is read
	closesWrite bool         // the socket's write side closes once unsent is empty
	tlsErr      error        // the end of the TLS stream: io.EOF, or an error
}

// pair is a session in a loop.
type pair struct {
	c              *conn
	loop           *loop
	client, server side
	closing        bool      // both sockets close once client.unsent is empty
	lingersUntil   time.Time // when both sockets close in any case
	apart          bool      // the core runs outside of the loop
	later          []func()  // what waits for its return
}

// lengthy is how many bytes of input the core handles outside of the loop: it reads some 200 MB
// of text in a second, and other sessions must not wait for that.
const lengthy = 4 * loopBuffer

// runApart calls a function outside of the loop, and then the one that it returns in the loop.
// Nothing else of this session happens meanwhile, and no other session waits.
func (p *pair) runApart(f func(out *session.Out) (then func())) {
	p.apart = true
	client, server := p.client.watched, p.server.watched
	p.setEvents(&p.client, 0)
	p.setEvents(&p.server, 0)
	go func() {
		then := p.hangUp
		p.guard(func() { then = f(new(session.Out)) })
		p.loop.post(func() {
			p.apart = false
			p.guard(func() {
				p.setEvents(&p.client, client)
				p.setEvents(&p.server, server)
				then()
			})
			for len(p.later) > 0 && !p.apart {
				f := p.later[0]
				p.later = p.later[1:]
				p.guard(f)
			}
		})
	}()
}

// guard calls f. A panic ends this session only.
func (p *pair) guard(f func()) {
	defer func() {
		if r := recover(); r != nil {
			p.c.reportPanic(r)
			if !p.apart {
				p.hangUp()
			}
		}
	}()
	f()
}

// begin handles the bytes that were read before the loop adopted the session. It runs in
// the loop.
func (p *pair) begin() {
	p.loop.registerSide(&p.client)
	p.loop.registerSide(&p.server)
	p.fromServer(p.decryptBuffered(&p.server))
	p.fromClient(p.decryptBuffered(&p.client))
}

// decryptBuffered returns bytes that TLS has read before the loop adopted the side.
func (p *pair) decryptBuffered(s *side) []byte {
	if s.tls == nil || p.closing {
		return nil
	}
	return p.loop.decrypt(s, nil)
}

func (p *pair) wakeServerSide() { p.post(func() { p.fromServer(nil) }) }
func (p *pair) wakeClientSide() { p.post(func() { p.fromClient(nil) }) }
func (p *pair) stopWaiting()    {} // the loop waits for no side
func (p *pair) close()          { p.post(p.hangUp) }

// post has the loop call f soon.
func (p *pair) post(f func()) {
	p.loop.post(func() {
		if p.apart {
			p.later = append(p.later, f)
			return
		}
		p.guard(f)
	})
}

// input returns the side's unused input, with the bytes that were read behind it.
func (s *side) input(read []byte) []byte {
	if s.unused.b == nil || len(s.unused.bytes()) == 0 {
		return read
	}
	s.unused.w += len(read)
	return s.unused.bytes()
}

// keepUnused keeps the input behind its first used bytes.
func (s *side) keepUnused(input []byte, used int) {
	if len(s.unused.bytes()) > 0 {
		s.unused.used(used)
		if len(s.unused.bytes()) == 0 {
			s.unused = buffer{}
		}
		return
	}
	if rest := input[used:]; len(rest) > 0 {
		s.unused = buffer{b: make([]byte, max(len(rest), smallBuffer)), w: len(rest)}
		copy(s.unused.b, rest)
	} else if s.unused.b != nil {
		s.unused = buffer{}
	}
}

// fromClient passes bytes of the client to the core, and sends its output to the server.
func (p *pair) fromClient(read []byte) {
	if p.closing {
		return
	}
	if p.apart {
		read = bytes.Clone(read) // the loop's buffer
		p.later = append(p.later, func() { p.fromClient(read) })
		return
	}
	in := p.client.input(read)
	if len(in) >= lengthy {
		p.runApart(func(out *session.Out) func() {
			used, held, ended, done := p.c.fromClient(in, out)
			return func() { p.sendClients(in, out, used, held, ended, done) }
		})
		return
	}
	used, held, ended, done := p.c.fromClient(in, &p.loop.out)
	p.sendClients(in, &p.loop.out, used, held, ended, done)
}

// sendClients sends what the core has made of the client's input, and continues with that side.
func (p *pair) sendClients(in []byte, out *session.Out, used int, held, ended, done bool) {
	p.loop.send(&p.server, out)
	p.client.keepUnused(in, used)
	if ended {
		p.end()
		return
	}
	if done {
		p.handleClientEnd()
		return
	}
	reading := !held && !p.client.eof && len(p.server.unsent) == 0
	if p.client.tls != nil {
		// The client's bytes may make TLS answer, so don't read them while it takes none.
		// PostgreSQL doesn't either. Servers are read on, since they may wait for that.
		reading = reading && len(p.client.unsent) == 0
	}
	p.watchRead(&p.client, reading)
	if reading && p.client.tlsErr != nil {
		p.handleReadEnd(&p.client, p.client.tlsErr)
	}
}

// fromServer passes bytes of the server to the core, and sends its output to the client.
func (p *pair) fromServer(read []byte) {
	if p.closing {
		return
	}
	if p.apart {
		read = bytes.Clone(read) // the loop's buffer
		p.later = append(p.later, func() { p.fromServer(read) })
		return
	}
	in := p.server.input(read)
	if len(in) >= lengthy {
		p.runApart(func(out *session.Out) func() {
			used, wake, ended := p.c.fromServer(in, out)
			return func() { p.sendServers(in, out, used, wake, ended) }
		})
		return
	}
	used, wake, ended := p.c.fromServer(in, &p.loop.out)
	p.sendServers(in, &p.loop.out, used, wake, ended)
}

// sendServers sends what the core has made of the server's input, and continues with that side.
func (p *pair) sendServers(in []byte, out *session.Out, used int, wake, ended bool) {
	p.loop.send(&p.client, out)
	p.server.keepUnused(in, used)
	if ended {
		p.end()
		return
	}
	reading := len(p.client.unsent) == 0
	p.watchRead(&p.server, reading)
	if wake {
		p.fromClient(nil)
	}
	if reading && p.server.tlsErr != nil && !p.apart {
		p.handleReadEnd(&p.server, p.server.tlsErr)
	}
}

// handleWritable sends the unsent bytes of a side, and continues with the other one.
func (p *pair) handleWritable(s *side) {
	if !p.flushUnsent(s) {
		return
	}
	if p.closing {
		p.hangUp()
		return
	}
	if !s.server {
		p.fromServer(nil)
	}
	p.fromClient(nil) // input may wait since the server took no bytes
}

// flushUnsent sends the unsent bytes of a side, and reports whether none are left.
func (p *pair) flushUnsent(s *side) bool {
	if len(s.unsent) > 0 {
		n, err := writeNow(s.fd, s.unsent)
		if err != nil && err != unix.EAGAIN && err != unix.EINTR {
			p.handleWriteError(s)
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
	if s.closesWrite {
		_ = unix.Shutdown(s.fd, unix.SHUT_WR)
	}
	return true
}

// appendFinal appends the last bytes of a side's stream to unsent, with TLS's close_notify.
func (s *side) appendFinal(words []byte) {
	if s.tls == nil {
		s.unsent = append(s.unsent, words...)
		return
	}
	// If TLS has failed, the peer has got an alert, and nothing more can be sent.
	if sealed, err := s.tls.Seal(s.unsent, words); err == nil {
		s.unsent, _ = s.tls.SealClose(sealed)
	}
}

// handleWriteError handles a side that takes no more bytes. The server may have sent an
// error before, so it is read on.
func (p *pair) handleWriteError(s *side) {
	s.unsent = nil
	if !s.server {
		p.hangUp()
		return
	}
	p.client.eof = true
	p.watchWrite(s, false)
	p.watchRead(&p.client, false)
}

// handleReadEnd handles the end of a side's stream: io.EOF, or an error.
func (p *pair) handleReadEnd(s *side, err error) {
	switch {
	case s.server:
		p.end()
	case err != io.EOF || p.closing:
		p.hangUp()
	default:
		p.handleClientEnd()
	}
}

// handleClientEnd handles the client's Terminate or the end of its stream: it ends the
// server's stream behind the unsent bytes. The client still gets its answers. Terminate
// alone doesn't end a server that waits for the rest of one with a too large length.
func (p *pair) handleClientEnd() {
	p.client.eof = true
	p.watchRead(&p.client, false)
	p.server.closesWrite = true
	p.server.appendFinal(nil)
	p.flushUnsent(&p.server)
}

// end ends the session: the client gets the unsent bytes and the FATAL, if there is one.
func (p *pair) end() {
	if p.closing {
		return
	}
	p.closing = true
	p.client.appendFinal(p.c.appendFatal(nil))
	p.watchRead(&p.server, false)
	p.watchRead(&p.client, false)
	if p.flushUnsent(&p.client) {
		p.hangUp()
		return
	}
	p.lingersUntil = time.Now().Add(lingerTime)
	p.loop.lingering = append(p.loop.lingering, p)
}

// lingerTime bounds how long a client may take to read the last bytes of its session.
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
		if len(s.unsent) == 0 { // otherwise close_notify would stand within a record
			if s.appendFinal(nil); len(s.unsent) > 0 {
				_, _ = writeNow(s.fd, s.unsent)
			}
		}
		_ = unix.Close(s.fd)
		s.fd, s.watched, s.unused, s.unsent, s.tls = -1, 0, buffer{}, nil, nil
	}
	p.closing = true
	p.c.finish()
}

// watchRead sets whether the loop reads a side.
func (p *pair) watchRead(s *side, read bool) {
	if read {
		p.setEvents(s, s.watched|unix.EPOLLIN)
	} else {
		p.setEvents(s, s.watched&^unix.EPOLLIN)
	}
}

// watchWrite sets whether the loop waits until a side takes bytes.
func (p *pair) watchWrite(s *side, write bool) {
	if write {
		p.setEvents(s, s.watched|unix.EPOLLOUT)
	} else {
		p.setEvents(s, s.watched&^unix.EPOLLOUT)
	}
}

// setEvents sets the epoll events of a side. A socket without any is removed: epoll would
// report it in every round once it is broken.
func (p *pair) setEvents(s *side, events uint32) {
	if events == s.watched || s.fd < 0 {
		return
	}
	op := unix.EPOLL_CTL_MOD
	switch {
	case events == 0:
		op = unix.EPOLL_CTL_DEL
	case s.watched == 0:
		op = unix.EPOLL_CTL_ADD
	}
	s.watched = events
	if err := unix.EpollCtl(p.loop.epoll, op, s.fd, &unix.EpollEvent{Events: events, Fd: int32(s.fd)}); err != nil {
		p.c.log.Error("cannot watch a socket", "error", os.NewSyscallError("epoll_ctl", err))
		p.hangUp()
	}
}
