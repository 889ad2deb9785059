package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// keeper comes back to sessions that hold when their time is over, so that an idle
// one gives its hold back. One goroutine does that for all of them: a hold lasts
// equally long in each, so the one whose time is over next stands at the head of a
// queue.
type keeper struct {
	mu    sync.Mutex
	queue []kept
	wake  chan struct{} // the queue is no longer empty
}

type kept struct {
	c  *conn
	at time.Time
}

// together is how long the keeper sleeps beyond the first session's time, to come to
// several in one go.
const together = 5 * time.Millisecond

func newKeeper() *keeper { return &keeper{wake: make(chan struct{}, 1)} }

// add has a session come up at a time. It is called under the session's lock.
func (k *keeper) add(c *conn, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := len(k.queue)
	for i > 0 && k.queue[i-1].at.After(at) {
		i--
	}
	k.queue = append(k.queue, kept{})
	copy(k.queue[i+1:], k.queue[i:])
	k.queue[i] = kept{c, at}
	if i == 0 {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// next takes out the session whose time is over, or tells how long that takes; -1 is
// for ever.
func (k *keeper) next(now time.Time) (c *conn, left time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		k.queue = nil
		return nil, -1
	}
	if left := k.queue[0].at.Sub(now); left > 0 {
		return nil, left
	}
	c = k.queue[0].c
	k.queue[0] = kept{}
	k.queue = k.queue[1:]
	return c, 0
}

// run serves the queue until stop is closed.
func (k *keeper) run(stop <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		c, left := k.next(time.Now())
		if c != nil {
			c.guard(func() { c.tick(k) })
			continue
		}
		if left < 0 {
			left = time.Hour
		}
		timer.Reset(left + together)
		select {
		case <-timer.C:
		case <-k.wake:
		case <-stop:
			return
		}
	}
}

// tick lets the core give back a hold whose time is over.
func (c *conn) tick(k *keeper) {
	c.withCore(func(core *session.Session) {
		send, next := core.Tick()
		c.ticks = !next.IsZero()
		if c.ticks {
			k.add(c, next)
		}
		if send {
			c.driver.send()
		}
	})
}

// startKeeping starts the keeper, and returns what stops it.
func (s *Server) startKeeping() (stop func()) {
	if s.config.Hold <= 0 {
		return func() {}
	}
	over := make(chan struct{})
	var keeping sync.WaitGroup
	keeping.Go(func() { s.keeper.run(over) })
	return func() {
		close(over)
		keeping.Wait()
	}
}

// storedCode asks the database of the proxy's own connection, every 15 s, whether
// code stored in it interferes with fences. Other databases are asked at logins.
const storedCode = `SELECT pg_catalog.current_database(), CASE WHEN pg_catalog.to_regprocedure('wirefence.stored_code_interferes()') IS NOT NULL THEN wirefence.stored_code_interferes() END`

// startAsking starts to ask the database of the proxy's own connection about code
// stored in it, and returns what stops that.
func (s *Server) startAsking() (stop func()) {
	if s.options.DatabaseURL == "" || s.config.Mode == session.Off {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	asking.Go(func() { s.askStored(ctx) })
	return func() {
		cancel()
		asking.Wait()
	}
}

// askStored asks again and again. A failure is no news here: sessions ask at their
// logins as well, and readiness tells of a database that is away.
func (s *Server) askStored(ctx context.Context) {
	var db *pgx.Conn
	defer func() {
		if db != nil {
			_ = db.Close(context.Background())
		}
	}()
	ticks := time.NewTicker(session.AskInterval)
	defer ticks.Stop()
	for {
		db = s.askOnce(ctx, db)
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
	}
}

// askOnce asks on a connection, nil for a new one, and returns it while it is good.
func (s *Server) askOnce(ctx context.Context, db *pgx.Conn) *pgx.Conn {
	ctx, cancel := context.WithTimeout(ctx, s.options.ConnectTimeout)
	defer cancel()
	if db == nil {
		var err error
		if db, err = pgx.Connect(ctx, s.options.DatabaseURL); err != nil {
			return nil
		}
	}
	var name string
	var interferes *bool
	era := s.databases.Era()
	err := db.QueryRow(ctx, storedCode, pgx.QueryExecModeExec).Scan(&name, &interferes)
	switch {
	case err != nil:
		_ = db.Close(context.Background())
		return nil
	case interferes != nil:
		s.databases.Learn(name, *interferes, era)
	}
	return db
}
