package fencingtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
)

// An isolated session has a check in each message that needs one. A busy one takes its hold
// from time to time, more often on a slow machine.
func TestHowOftenIsChecked(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		for _, p := range protocols {
			c := w.connect(t)
			before, isolated, got := w.checks(t), 0, 0
			want := func(checks int, why string) {
				t.Helper()
				n := w.checks(t) - before
				before, isolated, got = before+n, isolated+checks, got+n
				if !w.busy && n != checks {
					t.Errorf("%s, %s: %d checks, want %d", why, p.name, n, checks)
				}
			}
			stack.WantState(t, p.run(c, "insert into jobs values (34)"), "")
			c.Must("begin", "insert into jobs values (34)", "savepoint a", "insert into jobs values (34)", "rollback to a", "commit")
			if n := w.checks(t) - before; n != 0 {
				t.Errorf("%d checks without a fence", n)
			}
			c.Must("set wirefence.token = 'orders=34'", "show work_mem", "reset work_mem", "begin", "rollback")
			want(0, "nothing to check")
			if w.busy {
				w.warm("", c)
				before = w.checks(t)
			}
			for range 5 {
				stack.WantState(t, p.run(c, "insert into jobs values (34)"), "")
			}
			each := 1
			if p.name == "prepared" {
				each = 2 // its Parse, too
			}
			want(5*each, "five writes")
			stack.WantState(t, p.run(c, "begin"), "")
			want(0, "BEGIN")
			for range 5 {
				stack.WantState(t, p.run(c, "insert into jobs values (34)"), "")
			}
			want(5*each, "five writes in a block")
			c.Must("savepoint a")
			want(1, "SAVEPOINT")
			c.Must("rollback to a", "release a", "commit")
			want(0, "ends")
			c.Must("insert into jobs values (34); insert into jobs values (34); commit; insert into jobs values (34)")
			want(2, "two transactions in a message")
			all := c.Exchange(2, pipelined("insert into jobs values (34)", "insert into jobs values (34)", "", "insert into jobs values (34)", "")...)
			stack.WantState(t, stack.Err(all), "")
			want(2, "two batches")
			if w.busy && got > isolated/2 {
				t.Errorf("%s: %d checks under holds, %d without", p.name, got, isolated)
			}
		}
	})
}

// A transaction that gets its first fence is refused if that is stale, even if its snapshot is
// older than the newer token.
//
// Evidence: I4
func TestTokenThatWentStaleInAnOpenTransaction(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for i, isolation := range isolations {
			for _, p := range protocols[:2] {
				resource := fmt.Sprintf("%s:%d", p.name, i)
				w.Seal(t, resource, 33)
				c := w.connect(t)
				c.Must("begin isolation level "+isolation, "select * from cell")
				w.Seal(t, resource, 34)
				c.Must("set local wirefence.token = '" + resource + "=33'")
				got := stack.State(p.run(c, insert))
				if got != "WF001" && (got != "40001" || i == 0) {
					t.Errorf("%s, %s: got %q", isolation, p.name, got)
				}
				c.Must("rollback", "set wirefence.token = '"+resource+"=33'", "begin isolation level "+isolation)
				stack.WantState(t, p.run(c, insert), "WF001", isolation, p.name)
				c.Must("rollback")
			}
		}
		w.wantRows(t, 0)
	})
}

// A stale session gets no lock on a table: it is refused at once.
func TestLockOfAStaleSession(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		holder := w.connect(t, "wirefence.token", "orders=34")
		for _, isolation := range isolations {
			for _, p := range protocols {
				for _, before := range []string{"", "savepoint s"} {
					c := w.begins(t)
					c.Must("set wirefence.token = '"+stale+"'", "begin isolation level "+isolation)
					err := error(nil)
					if before != "" {
						err = c.Simple(before)
					}
					if err == nil {
						err = p.run(c, "lock table jobs in access exclusive mode")
					}
					if got := stack.State(err); got != "WF001" && (got != "40001" || isolation == isolations[0]) {
						t.Errorf("%s, %s: got %q", isolation, p.name, got)
					}
					holder.Patience = 10 * time.Second
					holder.Must("insert into jobs values (34)")
					c.Must("rollback")
					c.Close()
				}
			}
		}
		c := w.begins(t)
		c.Must("set wirefence.token = '" + stale + "'")
		stack.WantState(t, c.Simple("begin; lock table jobs; select 1; commit"), "WF001")
		c.Must("rollback")
		stack.WantState(t, c.Batch(pipelined("begin", "lock table jobs")...), "WF001")
		c.Must("rollback")
		holder.Must("insert into jobs values (34)")
	})
}

// Rolling back to a savepoint releases the lock of a check behind it, so the next write is
// checked again. A check ahead of the savepoint keeps its lock.
//
// Evidence: I4
func TestSavepointsLoseTheirCheck(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		for i, end := range []string{"rollback to a", "rollback to savepoint a; release savepoint a", "rollback work to a", "release a"} {
			resource := fmt.Sprintf("orders:%d", i)
			behind := " /*wirefence.token='" + resource + "=33'*/"
			w.Seal(t, resource, 33)
			c := w.connect(t)
			c.Must("begin", "savepoint a")
			if end == "release a" {
				c.Must("savepoint b", insert+behind, "rollback to b")
			} else {
				c.Must(insert + behind)
			}
			c.Must(end)
			w.Seal(t, resource, 34)
			stack.WantState(t, c.Extended(insert+behind), "WF001", end)
			c.Must("commit")
			c.Close()

			w.Seal(t, resource, 35)
			w.Exec(t, "select wirefence.set_resource('"+resource+"', 'why', preempt_after => '100 ms')")
			c = w.connect(t, "user", "app")
			c.Must("set wirefence.token = '"+resource+"=35'", "begin", "savepoint a", "insert into jobs values (35)", "rollback to a")
			began := time.Now()
			w.Seal(t, resource, 36)
			if waited := time.Since(began); waited < 100*time.Millisecond {
				t.Errorf("%s: the takeover waited %v", end, waited)
			}
			if err := c.Simple("commit"); err == nil {
				t.Errorf("%s: the former holder's COMMIT succeeded", end)
			}
		}
		w.wantRows(t, 0)
	})
}
