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
	// handoverTime is how long idle sessions stay after another process has taken over:
	// a client that has just connected would take a FATAL for a refusal.
	handoverTime = time.Second
	// lateLoginTime is how long a client that was accepted just before a drain has to
	// log in.
	lateLoginTime = 5 * time.Second
	// cancelTime bounds the cancel requests for sessions that are aborted together;
	// cancelsAtOnce bounds how many run at a time.
	cancelTime    = time.Second
	cancelsAtOnce = 16
)

var (
	shutdownError     = wire.Error{Code: "57P01", Message: "terminating connection due to administrator command"}
	loginTimeoutError = wire.Error{Code: "57014", Message: "canceling authentication due to timeout"}
)

// Shutdown ends the server without breaking transactions, and returns just before Serve
// does. For DrainGrace the server still accepts clients; then it ends each session with
// 57P01 at the end of its transaction; after DrainTimeout it closes the rest. If ctx
// ends first, Shutdown calls Abort and returns ctx's error. It may be called at any time
// and more than once; before Serve it closes the listeners.
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
	case <-s.serveEnded:
		return nil
	case <-ctx.Done():
	}
	s.Abort()
	<-s.serveEnded
	return ctx.Err()
}

// drain ends all sessions at the end of their transactions.
func (s *Server) drain() {
	log := s.options.Logger
	s.draining.Store(true)
	if s.options.ReusePort {
		for _, l := range s.httpListeners {
			_ = l.Close() // the process that takes over answers probes and requests
		}
	}
	if s.options.DrainGrace > 0 {
		log.Info("draining: still accepting clients", "for", s.options.DrainGrace)
		s.wait(s.options.DrainGrace, nil)
	}
	s.closeListeners()
	if s.sharesListeners() {
		log.Info("draining: another process may accept new clients; idle sessions stay for a moment", "for", handoverTime)
		s.wait(handoverTime, nil)
	}
	s.mu.Lock()
	s.endingSessions = true
	s.mu.Unlock()
	left := s.eachConn(func(c *conn) { c.endWhenIdle(shutdownError) })
	log.Info("draining: no new clients; sessions end with their transactions", "sessions", left, "timeout", s.options.DrainTimeout)
	over := make(chan struct{})
	go func() { // ends before Serve, which waits for the handlers, too
		s.handlers.Wait()
		close(over)
	}()
	defer func() { <-over }()
	greeting := min(lateLoginTime, s.options.DrainTimeout)
	if s.wait(greeting, over) {
		return
	}
	s.endLogins(errDraining)
	s.eachConn(func(c *conn) { c.endLoginPhase(shutdownError) })
	if !s.wait(s.options.DrainTimeout-greeting, over) {
		log.Warn("draining: closing sessions whose transactions did not end", "sessions", s.abortAll())
	}
}

// wait waits for over, for at most d, and until Abort. It reports whether over was
// closed.
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

// Abort makes Serve return soon: it ends all sessions with 57P01, in transactions too,
// and cancels their running statements. Abort doesn't wait for that. It may be called at
// any time and more than once.
func (s *Server) Abort() { s.abortOnce.Do(func() { close(s.abort) }) }

// abortAll ends all sessions and returns how many there were.
func (s *Server) abortAll() int {
	s.endLogins(errDraining)
	s.mu.Lock()
	s.endingSessions = true // ends those that register sees from now on
	s.mu.Unlock()
	ctx, stop := context.WithTimeout(context.Background(), cancelTime)
	defer stop()
	var ending sync.WaitGroup
	slots := make(chan struct{}, cancelsAtOnce)
	n := s.eachConn(func(c *conn) {
		slots <- struct{}{}
		ending.Go(func() {
			c.guard(func() { c.abort(ctx, shutdownError) })
			<-slots
		})
	})
	ending.Wait()
	return n
}

// eachConn calls do for every session and returns how many there are. A panic ends that
// session only.
func (s *Server) eachConn(do func(*conn)) int {
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

// endWhenIdle ends the session as soon as Session.MayEnd. The first reason counts.
func (c *conn) endWhenIdle(why wire.Error) {
	c.withCore(func(core *session.Session) {
		if c.endReason == nil {
			c.endReason = &why
		}
		if core.MayEnd() {
			c.driver.wakeServerSide()
		}
	})
}

// endLoginPhase ends the session if the client has not logged in yet.
func (c *conn) endLoginPhase(why wire.Error) {
	c.withCore(func(core *session.Session) {
		if core.LoggedIn() {
			return
		}
		core.End(why)
		c.driver.stopWaiting()
	})
}

// abort ends the session at once and cancels its running statement: otherwise the server
// would finish and commit it before it noticed the closed connection. ctx bounds the
// cancel request.
func (c *conn) abort(ctx context.Context, why wire.Error) {
	running, key := false, ""
	c.withCore(func(core *session.Session) {
		c.endReason = &why
		core.End(why)
		running, key = core.Running(), core.Key()
	})
	if running && key != "" {
		if err := c.server.upstream.Cancel(ctx, c.route, wire.AppendCancel(nil, key)); err != nil {
			c.log.Warn("cannot cancel the statement of a closed session; the server ends it when it notices the closed connection", "error", err)
		}
	}
	c.withCore(func(*session.Session) {
		c.driver.wakeServerSide()
		c.driver.stopWaiting()
	})
}

// reportTimeout tells the client that its login took too long, or why the core has ended
// the session. Other failures come from the client, or it has got the server's error.
func (c *conn) reportTimeout(err error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	why := c.fatal()
	if why == nil {
		why = &loginTimeoutError
	}
	refuse(c.client, *why)
}
