package holdtest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// isolated opens a session of token 34 whose transactions read by a snapshot.
func (w *world) isolated(t *testing.T, level, readOnly string) *stack.Client {
	t.Helper()
	return stack.Login(t, w.proxy, w.Name, "options", "-c wirefence.token=orders=34 -c default_transaction_isolation="+level+" -c default_transaction_read_only="+readOnly)
}

// levels are default_transaction_isolation, as options have them.
var levels = []string{`repeatable\ read`, "serializable"}

// A verdict outlives its transaction, so no snapshot may be older than it.
func TestHoldsAreReadInReadCommitted(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for _, level := range levels {
			for _, readOnly := range []string{"on", "off"} {
				c := w.isolated(t, level, readOnly)
				stack.Eventually(t, "a busy session holds, "+level+", read only "+readOnly, func() bool {
					c.Must("SELECT 1", "SELECT 1", "SELECT 1")
					return w.held(t) == 1
				})
				c.Must("BEGIN READ WRITE; INSERT INTO t (token) VALUES (34); COMMIT")
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
			for _, sql := range []string{"BEGIN READ WRITE; INSERT INTO t (token) VALUES (33); COMMIT", "INSERT INTO t (token) VALUES (33)"} {
				stack.WantState(t, c.Simple(sql), "WF001", level)
				c.Must("ROLLBACK")
			}
			c.Close()
			w.back(t)
		}
		if n := w.number(t, "SELECT count(*) FROM t WHERE token = 33"); n > 0 {
			t.Errorf("%d stale rows", n)
		}
	})
}

// olderSnapshots are transactions with a snapshot that is older than a takeover. The
// takeover comes while the one before the last statement of opened has been run; what
// is behind the period of the hold must not let it in.
var olderSnapshots = []struct {
	name           string
	opened, behind []string
}{
	{"READ ONLY", []string{"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM t"}, []string{"SELECT count(*) FROM t", "COMMIT"}},
	{
		"READ ONLY in a savepoint",
		[]string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM t", "SAVEPOINT s", "SET TRANSACTION READ ONLY"},
		[]string{"SELECT count(*) FROM t", "ROLLBACK TO s", "INSERT INTO t (token) VALUES (34)", "COMMIT"},
	},
	{"SERIALIZABLE", []string{"BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT count(*) FROM t"}, []string{"INSERT INTO t (token) VALUES (34)", "COMMIT"}},
	{
		"a cursor WITH HOLD that writes at COMMIT",
		[]string{"BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT write_one()", "SAVEPOINT s"},
		[]string{"SELECT 1", "ROLLBACK TO s", "COMMIT"},
	},
	{"COMMIT AND CHAIN", []string{"BEGIN", "INSERT INTO t (token) VALUES (34)", "COMMIT AND CHAIN", "INSERT INTO t (token) VALUES (34)"}, []string{"COMMIT"}},
	{"savepoints", []string{"BEGIN", "SAVEPOINT a", "INSERT INTO t (token) VALUES (34)", "SAVEPOINT b"}, []string{"ROLLBACK TO b", "RELEASE a", "COMMIT"}},
	{
		"failed and rolled back to a savepoint",
		[]string{"BEGIN", "INSERT INTO t (token) VALUES (34)", "SAVEPOINT a"}, []string{"SELECT 1", "ROLLBACK TO a", "INSERT INTO t (token) VALUES (34)", "COMMIT"},
	},
}

// Nothing that comes within a transaction lets a takeover in between, however long the
// transaction lasts.
func TestTransactionsThatOutlastTheirHold(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.never(t)
		for _, tx := range olderSnapshots {
			c := w.client(t, "orders=34")
			c.Must("INSERT INTO t (what) VALUES ('first')", "INSERT INTO t (what) VALUES ('second')", "SELECT 1")
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
			w.wantRefused(t, tx.name, c, "INSERT INTO t (what) VALUES ('late')")
			c.Close()
			w.back(t)
		}
	})
}

// LOCK TABLE comes before the snapshot, under a check and under a hold.
func TestLockTableComesBeforeTheSnapshot(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for _, busy := range []bool{false, true} {
			w.exec(t, "TRUNCATE t")
			c := w.client(t, "orders=34")
			if busy {
				c.Must("SELECT 1", "SELECT 2", "SELECT 3")
			}
			tx, err := w.Direct(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "INSERT INTO t (token) VALUES (100)"); err != nil {
				t.Fatal(err)
			}
			c.Must("BEGIN ISOLATION LEVEL REPEATABLE READ")
			over := make(chan error, 1)
			go func() { over <- c.Simple("LOCK TABLE t IN SHARE ROW EXCLUSIVE MODE") }()
			stack.Eventually(t, "LOCK TABLE waits", func() bool {
				return w.number(t, "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted") == 1
			})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			stack.WantState(t, <-over, "")
			if n := c.Value("SELECT count(*) FROM t"); n != "1" {
				t.Errorf("busy %v: %s rows behind LOCK TABLE", busy, n)
			}
			c.Must("UPDATE t SET token = 101", "COMMIT")
			c.Close()
		}
	})
}

// A snapshot that was exported before the takeover shows what was before it.
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
		w.exec(t, "INSERT INTO t (token) VALUES (34)")
		w.seal(t, "orders", 35)
		for _, scope := range []string{"", "SESSION "} {
			c := w.client(t, "orders=35")
			w.busy(t, c)
			c.Must("BEGIN ISOLATION LEVEL REPEATABLE READ", "SET "+scope+"TRANSACTION SNAPSHOT '"+id+"'")
			stack.WantState(t, c.Simple("SELECT count(*) FROM t"), "40001", scope)
			c.Close()
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// PREPARE TRANSACTION would leave the session's lock behind.
func TestPrepareTransaction(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for _, by := range carriers {
			c := by.login(w, t, "34")
			insert := "INSERT INTO t (token) VALUES (34)" + by.comment
			c.Must(insert, insert, "BEGIN", insert)
			c.Fails("PREPARE TRANSACTION 'orphan'", "WF006")
			c.Must("ROLLBACK", "BEGIN", insert, "SET LOCAL wirefence.token = ''")
			stack.WantState(t, c.Extended("PREPARE TRANSACTION 'orphan'"), "WF006", by.name)
			c.Must("ROLLBACK", insert)
		}
		free := stack.Login(t, w.proxy, w.Name)
		free.Must("BEGIN", "INSERT INTO t (token) VALUES (0)", "PREPARE TRANSACTION 'free'")
		c := w.client(t, "orders=34")
		c.Fails("COMMIT PREPARED 'free'", "WF006")
		free.Must("COMMIT PREPARED 'free'")
		if n := w.number(t, "SELECT count(*) FROM pg_prepared_xacts"); n > 0 {
			t.Errorf("%d prepared transactions", n)
		}
	})
}
