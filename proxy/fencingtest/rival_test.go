package fencingtest

import (
	"context"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
)

// rival is a seal of token 35 that is under way on a connection of its own.
type rival struct {
	w    *world
	over chan error
	took time.Duration
}

// rival begins to take orders over.
func (w *world) rival(t *testing.T) *rival {
	t.Helper()
	r := &rival{w: w, over: make(chan error, 1)}
	conn := w.Direct(t)
	began := time.Now()
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT wirefence.seal('orders', 35, 'the next')")
		r.took = time.Since(began)
		_ = conn.Close(context.Background()) // a test may have hundreds of rivals
		r.over <- err
	}()
	return r
}

// waits fails the test unless the rival comes to wait for a lock.
func (r *rival) waits(t *testing.T, about string) {
	t.Helper()
	returned := false
	stack.Eventually(t, "the rival waits", func() bool {
		returned = len(r.over) > 0
		return returned || r.w.count(t, `SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
			WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND NOT l.granted`) > 0
	})
	if returned {
		t.Errorf("%s: the seal returned while an older transaction was open", about)
	}
}

// succeeds waits for the end of the seal.
func (r *rival) succeeds(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.over:
		if err != nil {
			t.Error(err)
		}
		r.over <- nil
	case <-time.After(stack.Patience):
		t.Fatal("the seal did not return")
	}
}

// within fails the test if the seal took longer.
func (r *rival) within(t *testing.T, limit time.Duration) {
	t.Helper()
	r.succeeds(t)
	t.Logf("PostgreSQL %d: the seal took %s", r.w.Major, r.took.Round(time.Millisecond))
	if r.took > limit {
		t.Errorf("the seal took %s, longer than %s", r.took, limit)
	}
}

// blocks takes the lock of orders exclusively without a seal, until free is called.
func (w *world) blocks(t *testing.T) (free func()) {
	t.Helper()
	c := stack.Login(t, w.Addr(), w.Name)
	c.Must("BEGIN", "SELECT pg_advisory_xact_lock(wirefence.lock_key('orders'))")
	return func() { c.Must("ROLLBACK") }
}

// waiting is how many sessions wait for a lock of a resource, shared.
func (w *world) waiting(t *testing.T) int {
	t.Helper()
	return w.count(t, `SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
		WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.mode = 'ShareLock' AND NOT l.granted`)
}

// overdue waits until the period of a hold that was taken before now is over.
func overdue(t *testing.T) {
	t.Helper()
	end := time.Now().Add(suite.Options.Hold)
	stack.Eventually(t, "the period of the hold is over", func() bool { return time.Now().After(end) })
}

// back makes 34 the current token again.
func (w *world) back(t *testing.T) {
	t.Helper()
	w.Exec(t, "UPDATE wirefence.resource_locks SET last_token = 34 WHERE resource_id = 'orders'")
}

// wantRefused fails the test if a stale session's insert goes through.
func (w *world) wantRefused(t *testing.T, about string, c *client, insert string) {
	t.Helper()
	before := w.rows(t)
	stack.WantState(t, c.Simple(insert), "WF001", about)
	stack.WantState(t, c.Extended(insert), "WF001", about)
	if after := w.rows(t); after != before {
		t.Errorf("%s: %d stale rows", about, after-before)
	}
}
