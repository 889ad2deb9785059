package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// timeouts are how long a session may stay where it is; 0 is for ever.
type timeouts struct{ idle, inTransaction, transaction time.Duration }

// A timeout that can end a session. The words are PostgreSQL's.
type timeout struct {
	name string // in metrics and logs
	why  wire.Error
}

var (
	idleTimeout          = timeout{"idle", wire.Error{Code: "57P05", Message: "terminating connection due to idle-session timeout"}}
	inTransactionTimeout = timeout{"idle_in_transaction", wire.Error{Code: "25P03", Message: "terminating connection due to idle-in-transaction timeout"}}
	transactionTimeout   = timeout{"transaction", wire.Error{Code: "25P04", Message: "terminating connection due to transaction timeout"}}
)

// watch is what the sweeper remembers of a session. Times are those at which it
// looked, so a session gets its time in full, and up to one round more.
type watch struct {
	last  session.Standing
	still time.Time // since when nothing has changed
	began time.Time // since when the transaction has been open; zero if none is
}

// judge takes in where a session stands now, and returns the timeout that it has
// exceeded, or nil.
func (t timeouts) judge(w *watch, at session.Standing, now time.Time) *timeout {
	if w.still.IsZero() || at != w.last {
		w.still = now
	}
	open := at.Where == session.Waiting || at.Where == session.Running
	switch {
	case !open:
		w.began = time.Time{}
	case w.began.IsZero() || at.Transactions != w.last.Transactions:
		w.began = now
	}
	w.last = at
	exceeded := func(limit time.Duration, since time.Time) bool { return limit > 0 && now.Sub(since) >= limit }
	switch {
	case at.Where == session.Between && exceeded(t.idle, w.still):
		return &idleTimeout
	case at.Where == session.Waiting && exceeded(t.inTransaction, w.still):
		return &inTransactionTimeout
	case open && exceeded(t.transaction, w.began):
		return &transactionTimeout
	}
	return nil
}

// period is how often sessions are looked at, 0 for never: a fraction of the
// shortest timeout, so that none is exceeded by much.
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

// startSweeping starts the sweeper if there is a timeout, and returns what stops
// it.
func (s *Server) startSweeping() (stop func()) {
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

// sweep ends the sessions that exceed a timeout, until stop is closed. One
// goroutine looks at all of them, so that a session has no timer and its
// messages cost no look at the clock.
func (s *Server) sweep(t timeouts, stop <-chan struct{}) {
	ticks := time.NewTicker(t.period())
	defer ticks.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-ticks.C:
			s.sweepOnce(t, now)
		}
	}
}

func (s *Server) sweepOnce(t timeouts, now time.Time) {
	ctx, stop := context.WithTimeout(context.Background(), cancelTime)
	defer stop()
	var ending sync.WaitGroup
	slots := make(chan struct{}, cancelsAtOnce)
	s.each(func(c *conn) {
		exceeded := c.expire(t, now)
		if exceeded == nil {
			return
		}
		s.metrics.timeouts.WithLabelValues(exceeded.name).Inc()
		c.log.Warn("a session is ended by a timeout", "timeout", exceeded.name, "sqlstate", exceeded.why.Code)
		slots <- struct{}{}
		ending.Go(func() {
			c.guard(func() { c.abort(ctx, exceeded.why) })
			<-slots
		})
	})
	ending.Wait()
}

// expire dooms the session if it exceeds a timeout, which it returns. Its end is
// then the caller's to bring about.
func (c *conn) expire(t timeouts, now time.Time) (exceeded *timeout) {
	c.withCore(func(core *session.Session) {
		if core.Farewell() != nil {
			return
		}
		if exceeded = t.judge(&c.watch, core.Standing(), now); exceeded != nil {
			core.End(exceeded.why)
		}
	})
	return exceeded
}
