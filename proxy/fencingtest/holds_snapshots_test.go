package fencingtest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// isolated opens a session of token 34 whose transactions read by a snapshot.
func (w *world) isolated(t *testing.T, level, readOnly string) *client {
	t.Helper()
	return w.fenced(t, "orders=34 -c default_transaction_isolation="+level+" -c default_transaction_read_only="+readOnly)
}

// levels are default_transaction_isolation, as options have them.
var levels = []string{`repeatable\ read`, "serializable"}

// The proxy takes holds in READ COMMITTED: an older snapshot would not see the latest token.
func TestHoldsAreReadInReadCommitted(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for _, level := range levels {
			for _, readOnly := range []string{"on", "off"} {
				c := w.isolated(t, level, readOnly)
				stack.Eventually(t, "a busy session holds, "+level+", read only "+readOnly, func() bool {
					c.Must("SELECT 1", "SELECT 1", "SELECT 1")
					return w.held(t) == 1
				})
				c.Must("BEGIN READ WRITE; INSERT INTO jobs (token) VALUES (34); COMMIT")
				c.Close()
			}
		}
		for _, level := range levels {
			c := w.isolated(t, level, "on")
			c.Must("SELECT 1")
			tx, err := w.Direct(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "SELECT wirefence.seal('orders', 35, 'the next')"); err != nil {
				t.Fatal(err)
			}
			over := make(chan error, 1)
			go func() { over <- c.Simple("SELECT 1") }()
			stack.Eventually(t, "the session waits for the takeover", func() bool { return w.waiting(t) == 1 })
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-over // a READ ONLY transaction may read what was before the takeover
			for _, sql := range []string{"BEGIN READ WRITE; INSERT INTO jobs (token) VALUES (33); COMMIT", "INSERT INTO jobs (token) VALUES (33)"} {
				stack.WantState(t, c.Simple(sql), "WF001", level)
				c.Must("ROLLBACK")
			}
			c.Close()
			w.back(t)
		}
		w.wantRowsOf(t, 33, 0)
	})
}

// olderSnapshots are transactions whose snapshot is older than a takeover that comes behind
// opened. The statements in behind come when the period of the hold is over.
var olderSnapshots = []struct {
	name           string
	opened, behind []string
}{
	{"READ ONLY", []string{"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM jobs"}, []string{"SELECT count(*) FROM jobs", "COMMIT"}},
	{
		"READ ONLY in a savepoint",
		[]string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM jobs", "SAVEPOINT s", "SET TRANSACTION READ ONLY"},
		[]string{"SELECT count(*) FROM jobs", "ROLLBACK TO s", "INSERT INTO jobs (token) VALUES (34)", "COMMIT"},
	},
	{"SERIALIZABLE", []string{"BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT count(*) FROM jobs"}, []string{"INSERT INTO jobs (token) VALUES (34)", "COMMIT"}},
	{
		"a cursor WITH HOLD that writes at COMMIT",
		[]string{"BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT writes(1)", "SAVEPOINT s"},
		[]string{"SELECT 1", "ROLLBACK TO s", "COMMIT"},
	},
	{"COMMIT AND CHAIN", []string{"BEGIN", "INSERT INTO jobs (token) VALUES (34)", "COMMIT AND CHAIN", "INSERT INTO jobs (token) VALUES (34)"}, []string{"COMMIT"}},
	{"savepoints", []string{"BEGIN", "SAVEPOINT a", "INSERT INTO jobs (token) VALUES (34)", "SAVEPOINT b"}, []string{"ROLLBACK TO b", "RELEASE a", "COMMIT"}},
	{
		"failed and rolled back to a savepoint",
		[]string{"BEGIN", "INSERT INTO jobs (token) VALUES (34)", "SAVEPOINT a"}, []string{"SELECT 1", "ROLLBACK TO a", "INSERT INTO jobs (token) VALUES (34)", "COMMIT"},
	},
}

// A takeover waits for the end of a transaction that outlasts its hold.
func TestTransactionsThatOutlastTheirHold(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.preempt(t, nil)
		for _, tx := range olderSnapshots {
			c := w.fenced(t, "orders=34")
			c.Must("INSERT INTO jobs (note) VALUES ('first')", "INSERT INTO jobs (note) VALUES ('second')", "SELECT 1")
			c.Must(tx.opened...)
			overdue(t)
			r := w.rival(t)
			r.waits(t, tx.name)
			for _, sql := range tx.behind {
				if len(r.over) > 0 {
					t.Errorf("%s: the seal returned ahead of %s", tx.name, sql)
				}
				if err := c.Simple(sql); err != nil {
					t.Errorf("%s: %s: %v", tx.name, sql, err)
				}
			}
			r.succeeds(t)
			w.wantRefused(t, tx.name, c, "INSERT INTO jobs (note) VALUES ('late')")
			c.Close()
			w.back(t)
		}
	})
}

// LOCK TABLE runs before the snapshot is taken, under a check and under a hold.
func TestLockTableComesBeforeTheSnapshot(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for _, busy := range []bool{false, true} {
			w.Exec(t, "TRUNCATE jobs")
			c := w.fenced(t, "orders=34")
			if busy {
				c.Must("SELECT 1", "SELECT 2", "SELECT 3")
			}
			tx, err := w.Direct(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "INSERT INTO jobs (token) VALUES (100)"); err != nil {
				t.Fatal(err)
			}
			c.Must("BEGIN ISOLATION LEVEL REPEATABLE READ")
			over := make(chan error, 1)
			go func() { over <- c.Simple("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE") }()
			stack.Eventually(t, "LOCK TABLE waits", func() bool {
				return w.count(t, "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 1
			})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			stack.WantState(t, <-over, "")
			if n := c.Value("SELECT count(*) FROM jobs"); n != "1" {
				t.Errorf("busy %v: %s rows behind LOCK TABLE", busy, n)
			}
			c.Must("UPDATE jobs SET token = 101", "COMMIT")
			c.Close()
		}
	})
}

// A transaction that imports a snapshot from before the takeover is refused.
func TestImportedSnapshots(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		tx, err := w.Direct(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var id string
		if _, err := tx.Exec(t.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), "SELECT pg_export_snapshot()").Scan(&id); err != nil {
			t.Fatal(err)
		}
		w.Exec(t, "INSERT INTO jobs (token) VALUES (34)")
		w.Seal(t, "orders", 35)
		for _, scope := range []string{"", "SESSION "} {
			c := w.fenced(t, "orders=35")
			w.warm("", c)
			c.Must("BEGIN ISOLATION LEVEL REPEATABLE READ", "SET "+scope+"TRANSACTION SNAPSHOT '"+id+"'")
			stack.WantState(t, c.Simple("SELECT count(*) FROM jobs"), "40001", scope)
			c.Close()
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A stale session keeps no lock of a table, also if it turns to another fence, or to none, in the
// text that takes it.
func TestAStaleSessionKeepsNoTableLock(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		c := w.fenced(t, "orders=33")
		for _, behind := range []string{"", "; SET wirefence.token = ''", "; SET LOCAL wirefence.token = 'orders=34'"} {
			c.Must("BEGIN")
			c.Fails("LOCK TABLE jobs"+behind, "WF001")
			c.Must("ROLLBACK")
		}
	})
}
