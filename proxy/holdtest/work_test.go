package holdtest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// A session that has paused is checked; a busy one holds, and gives back when it
// pauses again.
func TestABusySessionHolds(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		c := w.client(t, "orders=34")
		c.Must("INSERT INTO t (what) VALUES ('a check')")
		if n := w.held(t); n != 0 {
			t.Fatalf("a session that has just begun holds %d locks", n)
		}
		w.busy(t, c)
		stack.Eventually(t, "the hold is given back", func() bool { return w.held(t) == 0 })
		c.Must("INSERT INTO t (what) VALUES ('again')")
	})
}

// alone are commands that no check can share a transaction with, and what they leave.
var alone = []string{
	"CREATE INDEX CONCURRENTLY i ON t (what)",
	"DROP INDEX CONCURRENTLY i",
	"VACUUM t",
	"CALL commits(3)",
	"DO $$ BEGIN INSERT INTO t (what) VALUES ('block'); COMMIT; INSERT INTO t (what) VALUES ('block'); END $$",
	"REINDEX TABLE CONCURRENTLY t",
}

func TestWhatNoCheckCanCover(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		c := w.client(t, "orders=34")
		for _, sql := range alone {
			if err := c.Simple(sql); err != nil {
				t.Errorf("current, simple: %s: %v", sql, err)
			}
		}
		c = w.client(t, "orders=34")
		for _, sql := range alone {
			if err := c.Extended(sql); err != nil {
				t.Errorf("current, extended: %s: %v", sql, err)
			}
		}
		c = w.client(t, "orders=33")
		before := w.number(t, "SELECT count(*) FROM t")
		for _, sql := range alone {
			stack.WantState(t, c.Simple(sql), "WF001", sql)
			stack.WantState(t, c.Extended(sql), "WF001", sql)
		}
		if after := w.number(t, "SELECT count(*) FROM t"); after != before {
			t.Errorf("stale commands have left %d rows", after-before)
		}
		free := stack.Login(t, w.proxy, w.Name)
		for _, sql := range alone {
			if err := free.Simple(sql); err != nil {
				t.Errorf("unfenced: %s: %v", sql, err)
			}
		}
	})
}

// A stale session's reads are refused too, isolated or not.
func TestStaleSessions(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for range 3 {
			c := w.client(t, "orders=33")
			for range 3 {
				stack.WantState(t, c.Simple("SELECT 1"), "WF001")
				stack.WantState(t, c.Extended("SELECT reads_and_writes()"), "WF001")
				stack.WantState(t, c.Prepared("INSERT INTO t (what) VALUES ('stale')"), "WF001")
			}
		}
		if n := w.number(t, "SELECT count(*) FROM t"); n != 0 {
			t.Errorf("%d stale rows", n)
		}
	})
}
