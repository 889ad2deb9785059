package proxy

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

const (
	// handoverTime is how long after another process has taken over a session may
	// still be idle: a client that has just come would take its end for a refusal.
	handoverTime = time.Second
	// greetTime is how long a client that was accepted just before a drain has to
	// log in.
	greetTime = 5 * time.Second
	// cancelTime bounds asking servers to cancel what the sessions that are
	// aborted together have running, and cancelsAtOnce how many are asked at a
	// time.
	cancelTime    = time.Second
	cancelsAtOnce = 16
)

var (
	shutdownError = wire.Error{Code: "57P01", Message: "terminating connection due to administrator command"}
	tooLate       = wire.Error{Code: "57014", Message: "canceling authentication due to timeout"}
)

// Shutdown ends the server without breaking transactions, and returns when Serve
// is about to. For DrainGrace new clients are still accepted; then each session is
// ended with 57P01 at the end of its transaction; those that have not ended after
// DrainTimeout are closed. If ctx ends before all that, Shutdown calls Abort and
// returns ctx's error. It may be called at any time and more than once; before
// Serve it closes the listeners.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first, serving := !s.stopped, s.serving
	s.stopped = true
	s.mu.Unlock()
	if first {
		close(s.shutdown)
	}
	if !serving {
		for _, l := range s.listeners {
			_ = l.Close()
		}
		return nil
	}
	select {
	case <-s.over:
		return nil
	case <-ctx.Done():
	}
	s.Abort()
	<-s.over
	return ctx.Err()
}

// drain ends all sessions in order.
func (s *Server) drain() {
	log := s.options.Logger
	s.draining.Store(true)
	if s.options.ReusePort {
		for _, l := range s.http {
			_ = l.Close() // probes and requests are for the process that takes over
		}
	}
	if s.options.DrainGrace > 0 {
		log.Info("draining: still accepting clients", "for", s.options.DrainGrace)
		s.wait(s.options.DrainGrace, nil)
	}
	s.closeListeners()
	if s.sharesListeners() {
		log.Info("draining: another process may accept clients; the last clients of this one may begin their work", "for", handoverTime)
		s.wait(handoverTime, nil)
	}
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	left := s.each(func(c *conn) { c.leave(shutdownError) })
	log.Info("draining: no new clients; sessions end with their transactions", "sessions", left, "timeout", s.options.DrainTimeout)
	over := make(chan struct{})
	go func() { // Serve waits for the same
		s.handlers.Wait()
		close(over)
	}()
	defer func() { <-over }()
	greeting := min(greetTime, s.options.DrainTimeout)
	if s.wait(greeting, over) {
		return
	}
	s.enough(errDraining)
	s.each(func(c *conn) { c.hurry(shutdownError) })
	if !s.wait(s.options.DrainTimeout-greeting, over) {
		log.Warn("draining: closing sessions whose transactions did not end", "sessions", s.abortAll())
	}
}

// wait waits until something is over, but no longer than d, and not after Abort.
// It reports whether it is over.
func (s *Server) wait(d time.Duration, over <-chan struct{}) bool {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	select {
	case <-over:
		return true
	case <-timeout.C:
	case <-s.abort:
	}
	return false
}

// Abort makes Serve return soon: all sessions are ended now, whatever they are
// doing, with 57P01, and what their servers are running is cancelled. It doesn't
// wait for that, and may be called at any time and more than once.
func (s *Server) Abort() { s.abortOnce.Do(func() { close(s.abort) }) }

// abortAll ends all sessions and returns how many there were.
func (s *Server) abortAll() int {
	s.enough(errDraining)
	s.mu.Lock()
	s.ending = true // for those whose session is about to begin
	s.mu.Unlock()
	ctx, stop := context.WithTimeout(context.Background(), cancelTime)
	defer stop()
	var ending sync.WaitGroup
	slots := make(chan struct{}, cancelsAtOnce)
	n := s.each(func(c *conn) {
		slots <- struct{}{}
		ending.Go(func() {
			c.guard(func() { c.abort(ctx, shutdownError) })
			<-slots
		})
	})
	ending.Wait()
	return n
}

// each calls do for every session and returns how many there are. A panic in one
// leaves the others alone.
func (s *Server) each(do func(*conn)) int {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		c.guard(func() { do(c) })
	}
	return len(all)
}

// leave ends the session now if it may end, else as soon as it may. The first
// reason counts.
func (c *conn) leave(why wire.Error) {
	c.withCore(func(core *session.Session) {
		if c.leaving == nil {
			c.leaving = &why
		}
		if core.MayEnd() {
			c.driver.nudge()
		}
	})
}

// hurry ends the session if the client has not logged in yet.
func (c *conn) hurry(why wire.Error) {
	c.withCore(func(core *session.Session) {
		if core.LoggedIn() {
			return
		}
		core.End(why)
		c.driver.hasten()
	})
}

// abort ends the session whatever it is doing, and cancels what its server is
// running: else the server would go on, and commit, before it noticed that
// nobody is there. ctx bounds asking for that.
func (c *conn) abort(ctx context.Context, why wire.Error) {
	running, key := false, ""
	c.withCore(func(core *session.Session) {
		c.leaving = &why
		core.End(why)
		running, key = core.Running(), core.Key()
	})
	if running && key != "" {
		if err := c.server.upstream.Cancel(ctx, c.route, wire.AppendCancel(nil, key)); err != nil {
			c.log.Warn("cannot cancel the statement of a closed session; the server ends it when it notices the closed connection", "error", err)
		}
	}
	c.withCore(func(*session.Session) {
		c.driver.nudge()
		c.driver.hasten()
	})
}

// sayWhy tells the client why its login ended, if it is the proxy that lost
// patience.
func (c *conn) sayWhy(err error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return // the client knows, or is gone
	}
	why := c.farewell()
	if why == nil {
		why = &tooLate
	}
	refuse(c.client, *why)
}
