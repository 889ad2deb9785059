package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// session is one connection of the application's, with one of its own to the server. Its goroutine
// carries commands, another one replies.
type session struct {
	relay   *Relay
	client  net.Conn
	server  net.Conn // nil until it is connected
	in      buffer
	parser  parser
	replies *replies

	// What is known of the connection.
	ready    bool   // bytes pass; before, commands are sent one by one
	db       int    // -1 while it isn't known
	user     string // as which the client has logged in
	resp3    bool
	watching bool
	tx       *transaction // of the client's
	opaque   string       // why replies can't be matched, "" while they can
	refused  string       // why this user's commands of locks are refused

	mu       sync.Mutex
	draining bool
	ended    error // why it ends, the first reason
}

var (
	errEnding = errors.New("the relay ends")
	errOpaque = errors.New("a lock's command came on a connection on which the relay can't follow it")
)

func newSession(r *Relay, client net.Conn) *session {
	return &session{relay: r, client: client, user: "default", replies: newReplies(client),
		parser: parser{locks: &r.locks, limit: maxCommand}}
}

// rejectClient answers as Redis does.
func rejectClient(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write([]byte("-ERR max number of clients reached\r\n"))
	_ = conn.Close()
}

func (s *session) serve() {
	defer func() { _ = s.client.Close() }()
	if err := s.secure(); errors.Is(err, io.EOF) || err != nil && s.isDraining() {
		return
	} else if err != nil {
		s.relay.log.Warn("ending a connection to Redis", "client", s.client.RemoteAddr().String(), "error", err)
		return
	}
	server, err := s.relay.dial()
	if err != nil {
		s.relay.log.Error("cannot connect to Redis", "address", s.relay.upstream.Addr, "error", err)
		_, _ = s.client.Write(refusal("cannot connect to Redis"))
		return
	}
	if !s.connect(server) {
		_ = server.Close()
		return
	}
	var carrying sync.WaitGroup
	carrying.Go(func() { s.end(s.replies.carry(server)) })
	err = s.carry()
	switch {
	case errors.Is(err, errProtocol), errors.Is(err, errTooLarge), errors.Is(err, errOpaque):
		s.relay.log.Warn("ending a connection to Redis", "client", s.client.RemoteAddr().String(), "error", err, "reason", s.opaque)
		s.replies.sendLast(refusal(err.Error()))
		s.discardRest()
	case errors.Is(err, errEnding):
	case err == nil, errors.Is(err, io.EOF):
		s.halfClose(&carrying)
	}
	s.end(err)
	carrying.Wait()
}

// connect notes the server, unless the session has been ended.
func (s *session) connect(server net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = server
	return s.ended == nil && !s.draining
}

// discardRest reads what the client still sends, for a second. Otherwise the system would reset the
// connection, and the client could lose the last reply.
func (s *session) discardRest() {
	if c, ok := s.client.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		_ = s.client.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(io.Discard, s.client)
	}
}

// halfClose tells the server that the client sends no more, so that it answers what it has and ends.
func (s *session) halfClose(carrying *sync.WaitGroup) {
	if c, ok := s.server.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		_ = s.server.SetReadDeadline(time.Now().Add(time.Second))
		carrying.Wait()
	}
}

// end ends the session at once. It may be called more than once, and at any time.
func (s *session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		if s.ended = err; err == nil {
			s.ended = io.EOF
		}
	}
	_ = s.client.Close()
	if s.server != nil {
		_ = s.server.Close()
	}
}

// drain ends the session when its commands are answered.
func (s *session) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	_ = s.client.SetReadDeadline(time.Unix(1, 0))
}

func (s *session) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// carry carries commands until the client closes the connection, or an error.
func (s *session) carry() error {
	for {
		buf := s.in.bytes()
		n, err := s.handle(buf)
		if err != nil {
			return err
		}
		s.in.take(n)
		switch {
		case s.isDraining():
			return s.awaitAnswers()
		case len(s.in.bytes()) > len(buf)-n: // more came during a seal
			continue
		}
		if err := s.in.read(s.client); err != nil && !s.isDraining() {
			return err
		}
	}
}

// awaitAnswers waits until all commands are answered, for a relay that ends.
func (s *session) awaitAnswers() error {
	if s.opaque == "" && s.tx == nil && s.parser.skipArgs == 0 {
		if _, err := s.ask(nil); err != nil {
			return err
		}
	}
	return errEnding
}

// handle handles the commands that buf begins with, and returns how much of it they are. What passes
// is sent together.
func (s *session) handle(buf []byte) (at int, err error) {
	sent := 0 // of buf
	for at < len(buf) {
		v, n, err := s.parser.next(buf[at:])
		if err != nil {
			return at, errors.Join(err, s.forward(buf[sent:at]))
		}
		if v == incomplete || n == 0 {
			break
		}
		command := buf[at : at+n]
		at += n
		if v == nothing || v == rest || s.ready && s.tx == nil && (v == plain || s.passes()) {
			continue
		}
		if used := s.rawTransaction(v, buf[at:]); used > 0 {
			at += used
			continue
		}
		if err := s.forward(buf[sent : at-n]); err != nil {
			return at, err
		}
		if err := s.act(v, command); err != nil {
			return at, err
		}
		sent = at
	}
	return at, s.forward(buf[sent:at])
}

// forward sends bytes to the server as they came.
func (s *session) forward(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := s.server.Write(b)
	return err
}

// passes notes what a special command does to a connection that is ready, where that needs no look
// at its reply, and reports whether it passes.
func (s *session) passes() bool {
	args := s.parser.args
	switch s.parser.spec.control {
	case handshake:
		return true
	case watch:
		s.watching = true
		return true
	case unwatch:
		s.watching = false
		return true
	case execute, discard: // errors, without MULTI
		return true
	case ofClient:
		if len(args) > 2 && isName(args[1], "REPLY") && !isName(args[2], "ON") {
			s.opaque = "CLIENT REPLY was sent on it"
		}
		return true
	case subscribe:
		if !s.resp3 {
			s.opaque = "it has subscribed to channels; another connection takes locks"
		}
		return true
	case monitor:
		s.opaque = "MONITOR or PSYNC was sent on it"
		return true
	case reads:
		return s.db < 0 || s.watching || s.opaque != "" || s.relay.track(s.relay.locks.get(args[1]), s.db).rivalValue() == ""
	}
	return s.opaque != "" && s.parser.spec.control != 0
}

// ask sends commands and waits for their replies, of which it returns those to keep. What the client
// has sent before is answered then.
func (s *session) ask(commands []byte, wants ...want) ([][]byte, error) {
	if err := s.push(commands, wants...); err != nil {
		return nil, err
	}
	return s.replies.wait()
}

// push sends commands without waiting.
func (s *session) push(commands []byte, wants ...want) error {
	return s.forward(append(s.replies.expect(wants...), commands...))
}

// answer sends the client a reply of the relay's.
func (s *session) answer(reply []byte) error { return s.replies.send(reply, s.ready) }

// whileConnected runs work with a context that ends when the client closes the connection. What the
// client sends meanwhile is kept.
func (s *session) whileConnected(work func(ctx context.Context)) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var watching sync.WaitGroup
	watching.Go(func() {
		for len(s.in.bytes()) < s.parser.limit {
			if err := s.in.readBeside(s.client); err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					cancel(errClientGone)
				}
				return
			}
		}
	})
	work(ctx)
	_ = s.client.SetReadDeadline(time.Unix(1, 0))
	watching.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining {
		_ = s.client.SetReadDeadline(time.Time{})
	}
}
