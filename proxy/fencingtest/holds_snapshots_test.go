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
			w.Exec(t, "BEGIN", "SELECT wirefence.seal('orders', 35, 'the next')")
			over := make(chan error, 1)
			go func() { over <- c.Simple("SELECT 1") }()
			stack.Eventually(t, "the session waits for the takeover", func() bool { return w.waiting(t) == 1 })
			w.Exec(t, "COMMIT")
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

// LOCK TABLE runs before the snapshot is taken, under a check and under a hold.
func TestLockTableComesBeforeTheSnapshot(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for _, busy := range []bool{false, true} {
			w.Exec(t, "TRUNCATE jobs")
			c := w.fenced(t, "orders=34")
			if busy {
				c.Must("SELECT 1", "SELECT 2", "SELECT 3")
			}
			w.Exec(t, "BEGIN", "INSERT INTO jobs (token) VALUES (100)")
			c.Must("BEGIN ISOLATION LEVEL REPEATABLE READ")
			over := make(chan error, 1)
			go func() { over <- c.Simple("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE") }()
			stack.Eventually(t, "LOCK TABLE waits", func() bool {
				return w.count(t, "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 1
			})
			w.Exec(t, "COMMIT")
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
		exporter := stack.Login(t, w.Addr(), w.Name)
		exporter.Must("BEGIN ISOLATION LEVEL REPEATABLE READ")
		id := exporter.Value("SELECT pg_export_snapshot()")
		w.Exec(t, "INSERT INTO jobs (token) VALUES (34)")
		w.Seal(t, "orders", 35)
		for _, scope := range []string{"", "SESSION "} {
			c := w.fenced(t, "orders=35")
			w.warm("", c)
			c.Must("BEGIN ISOLATION LEVEL REPEATABLE READ", "SET "+scope+"TRANSACTION SNAPSHOT '"+id+"'")
			stack.WantState(t, c.Simple("SELECT count(*) FROM jobs"), "40001", scope)
			c.Close()
		}
	})
}

// With reuse = once a token serves one transaction, so the proxy takes no hold.
func TestTokensThatAreUsedOnceAreNotHeld(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.Exec(t, "UPDATE wirefence.resource_locks SET reuse = 'once' WHERE resource_id = 'orders'")
		c := w.fenced(t, "orders=34")
		c.Must("INSERT INTO jobs (token) VALUES (34)")
		for range 3 {
			c.Fails("INSERT INTO jobs (token) VALUES (34)", "WF005")
			if n := w.held(t); n != 0 {
				t.Errorf("%d locks are held", n)
			}
		}
		w.Seal(t, "orders", 35)
		c.Must("SET wirefence.token = 'orders=35'")
		c.Fails("CALL committing()", "WF006")
		c.Must("BEGIN", "INSERT INTO jobs (token) VALUES (35)", "INSERT INTO jobs (token) VALUES (35)", "COMMIT")
		w.wantRows(t, 3)
	})
}
