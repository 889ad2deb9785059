package fencingtest

import (
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
)

// wantOver fails the test if a session whose proxy goes on can still write.
func (w *world) wantOver(t *testing.T, c *client, sql string) {
	t.Helper()
	if err := c.Simple(sql); err == nil {
		t.Errorf("%s succeeded behind the seal", sql)
	}
	if n := w.count(t, "SELECT count(*) FROM jobs WHERE note = 'late'"); n > 0 {
		t.Errorf("%d late rows", n)
	}
}

const late = "INSERT INTO jobs (note) VALUES ('late')"

// A takeover does not wait for idle sessions of a frozen proxy that hold, even without
// preempt_after.
//
// Evidence: I7
func TestFrozenProxyWithIdleSessions(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.preempt(t, nil)
		c, behind := w.startProxy(t)
		var sessions []*client
		for range 8 {
			sessions = append(sessions, behind.fenced(t, "orders=34", "user", "app"))
		}
		w.warm("", sessions...)
		c.freeze()
		w.rival(t).within(t, 600*time.Millisecond+slack)
		c.signal(syscall.SIGCONT)
		for _, s := range sessions {
			w.wantOver(t, s, late)
		}
	})
}

// slack is what a crowded machine may add to the bounds of a takeover.
const slack = time.Second

// An open transaction of a frozen proxy is ended after preempt_after.
//
// Evidence: I7
func TestFrozenProxyWithAnOpenTransaction(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		const preempt = time.Second
		w.preempt(t, preempt)
		c, behind := w.startProxy(t)
		s := behind.fenced(t, "orders=34", "user", "app") // no takeover ends a superuser's
		s.Must("SELECT 1", "SELECT 2", "SELECT 3", "BEGIN", late)
		c.freeze()
		r := w.rival(t)
		r.within(t, preempt+100*time.Millisecond+slack)
		if r.took < preempt {
			t.Errorf("the transaction was ended after %s", r.took)
		}
		c.signal(syscall.SIGCONT)
		w.wantOver(t, s, "COMMIT")
	})
}

// A proxy is frozen while it waits for a hold, so it does not learn that the server grants the
// lock.
func TestFrozenProxyThatTakesAHold(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.preempt(t, nil)
		c, behind := w.startProxy(t)
		s := behind.fenced(t, "orders=34", "user", "app") // no takeover ends a superuser's
		s.Must("SELECT 1")
		free := w.blocks(t)
		over := make(chan error, 1)
		go func() { over <- s.Simple("CALL committing()") }()
		stack.Eventually(t, "the session waits for its hold", func() bool { return w.waiting(t) == 1 })
		c.freeze()
		free()
		stack.Eventually(t, "the hold is granted", func() bool { return w.waiting(t) == 0 && w.held(t) == 1 })
		w.rival(t).within(t, 600*time.Millisecond+slack)
		c.signal(syscall.SIGCONT)
		if err := <-over; err == nil {
			t.Error("CALL succeeded behind the seal")
		}
		w.wantRows(t, 0)
	})
}
