package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// timeouts bound how long a session may stay in a state; 0 is no limit.
type timeouts struct{ idle, inTransaction, transaction time.Duration }

// timeout is a timeout that can end a session. The messages are PostgreSQL's.
type timeout struct {
	name string // in metrics and logs
	err  wire.Error
}

var (
	idleTimeout          = timeout{"idle", wire.Error{Code: "57P05", Message: "terminating connection due to idle-session timeout"}}
	inTransactionTimeout = timeout{"idle_in_transaction", wire.Error{Code: "25P03", Message: "terminating connection due to idle-in-transaction timeout"}}
	transactionTimeout   = timeout{"transaction", wire.Error{Code: "25P04", Message: "terminating connection due to transaction timeout"}}
)

// activityWatch is the sweeper's record of a session. A time is read behind the standing that
// it belongs to, so a session gets the full timeout, and up to one round more.
type activityWatch struct {
	last           session.Standing
	unchangedSince time.Time // since when last is the session's standing
	openSince      time.Time // since when the transaction has been open; zero if none is
}

// exceeded updates w by the session's standing now. It returns the timeout that the
// session has exceeded, or nil.
func (t timeouts) exceeded(w *activityWatch, at session.Standing, now time.Time) *timeout {
	if w.unchangedSince.IsZero() || at != w.last {
		w.unchangedSince = now
	}
	open := at.State == session.StateIdleInTransaction || at.State == session.StateRunning
	switch {
	case !open:
		w.openSince = time.Time{}
	case w.openSince.IsZero() || at.Transactions != w.last.Transactions:
		w.openSince = now
	}
	w.last = at
	exceeded := func(limit time.Duration, since time.Time) bool { return limit > 0 && now.Sub(since) >= limit }
	switch {
	case at.State == session.StateIdle && exceeded(t.idle, w.unchangedSince):
		return &idleTimeout
	case at.State == session.StateIdleInTransaction && exceeded(t.inTransaction, w.unchangedSince):
		return &inTransactionTimeout
	case open && exceeded(t.transaction, w.openSince):
		return &transactionTimeout
	}
	return nil
}

// period returns the interval of the sweeper's rounds, 0 without a timeout. It is a
// fraction of the shortest timeout, so that sessions exceed none by much.
func (t timeouts) period() time.Duration {
	var shortest time.Duration
	for _, d := range []time.Duration{t.idle, t.inTransaction, t.transaction} {
		if d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	if shortest == 0 {
		return 0
	}
	return min(max(shortest/8, 10*time.Millisecond), time.Second)
}

// startSweeper starts the sweeper if there is a timeout, and returns the function that
// stops it.
func (s *Server) startSweeper() (stop func()) {
	t := timeouts{s.options.IdleTimeout, s.options.IdleInTransactionTimeout, s.options.TransactionTimeout}
	if t.period() == 0 {
		return func() {}
	}
	over := make(chan struct{})
	var sweeping sync.WaitGroup
	sweeping.Go(func() { s.sweep(t, over) })
	return func() {
		close(over)
		sweeping.Wait()
	}
}

// sweep ends sessions that exceed a timeout, until stop is closed. One goroutine checks
// all of them, so that sessions need no timers and messages don't read the clock.
func (s *Server) sweep(t timeouts, stop <-chan struct{}) {
	ticks := time.NewTicker(t.period())
	defer ticks.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticks.C: // its time is when the round was due, which a busy machine delays
			s.sweepOnce(t)
		}
	}
}

func (s *Server) sweepOnce(t timeouts) {
	ctx, stop := context.WithTimeout(context.Background(), cancelTime)
	defer stop()
	var ending sync.WaitGroup
	slots := make(chan struct{}, cancelsAtOnce)
	s.eachConn(func(c *conn) {
		exceeded := c.expire(t)
		if exceeded == nil {
			return
		}
		s.metrics.timeouts.WithLabelValues(exceeded.name).Inc()
		c.log.Warn("a session is ended by a timeout", "timeout", exceeded.name, "sqlstate", exceeded.err.Code)
		slots <- struct{}{}
		ending.Go(func() {
			c.guard(func() { c.abort(ctx, exceeded.err) })
			<-slots
		})
	})
	ending.Wait()
}

// expire ends the core if the session exceeds a timeout, and returns that. The caller then
// aborts the session.
func (c *conn) expire(t timeouts) (exceeded *timeout) {
	c.withCore(func(core *session.Session) {
		if core.Fatal() != nil {
			return
		}
		standing := core.Standing()
		if exceeded = t.exceeded(&c.watch, standing, time.Now()); exceeded != nil {
			core.End(exceeded.err)
		}
	})
	return exceeded
}
