package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// locks lists the advisory locks of a session: bigint keys, and pairs as mode:class/key.
func (db database) locks(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	return column[string](t, db.admin(t), fmt.Sprintf(`SELECT concat(mode, ':', classid, '/', objid, '/', objsubid) FROM pg_locks
		WHERE locktype = 'advisory' AND granted AND pid = %d ORDER BY 1`, conn.PgConn().PID()))
}

// hold takes a hold for the session as a proxy does, and unhold gives it back.
func hold(t *testing.T, conn *pgx.Conn, text string) {
	t.Helper()
	if got := value[string](t, conn, holdSQL, text); !strings.HasPrefix(got, "held ") {
		t.Errorf("hold of %s: %s", text, got)
	}
}

const (
	holdSQL = "SELECT wirefence.proxy_hold(1001, $1, NULL, NULL, false, 'needed')"
	unhold  = "SELECT wirefence.proxy_unhold(1001, NULL)"
)

func (db database) wantLocks(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	if got := db.locks(t, conn); len(got) != n {
		t.Errorf("has %d locks, want %d: %q", len(got), n, got)
	}
}

// A default resource is a plain name, not encoded as in a fence.
func TestADefaultResourceWithAnyName(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := db.app(t)
		for _, name := range []string{"a b", "50%", "é=1,b"} {
			db.seal(t, name, 34)
			mustExec(t, app, "SELECT wirefence.check('34', $1, true, false)", name)
			wantCode(t, exec(app, "SELECT wirefence.check('33', $1, true, false)", name), "WF001")
			keys := value[[]int64](t, app, "SELECT ARRAY[hashtextextended($1, 8604534342903230051)]", name)
			mustExec(t, app, "SET wirefence.token = '34'")
			for _, fence := range []string{"'34'", "NULL"} {
				for _, has := range []string{"'nothing'", "'same'"} {
					if got := value[string](t, app, "SELECT wirefence.proxy_hold(7, "+fence+", $1, "+has+", false, 'group')", name); got != db.heldAnswer(t, fmt.Sprintf("held SERVER %d", keys[0])) {
						t.Errorf("%s is %s", name, got)
					}
				}
				db.wantLocks(t, app, 2)
				mustExec(t, app, "SELECT wirefence.proxy_unhold(7, $1)", keys)
				db.wantLocks(t, app, 0)
			}
			mustExec(t, app, "RESET wirefence.token")
		}
	})
}

// onStandby looks at a standby, which cannot judge: a check passes there without a lock, and a hold
// is refused.
func onStandby(t *testing.T, primary database) promotion {
	primary.seal(t, "orders", 34)
	return promotion{missed: func(t *testing.T, standby database) {
		reader := standby.admin(t)
		for _, begin := range []string{"BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"} {
			for _, call := range []string{"'orders=34', NULL, false, false", "'orders=33', NULL, true, false", "NULL, NULL, true, false", "'x', NULL, true, true"} {
				mustExec(t, reader, begin)
				if got := value[string](t, reader, "SELECT coalesce(wirefence.check("+call+"), 'none')"); got != "none" {
					t.Errorf("check(%s) says %s", call, got)
				}
				standby.wantLocks(t, reader, 0)
				mustExec(t, reader, "ROLLBACK")
			}
		}
		for _, call := range []string{"proxy_hold(7, 'orders=34', NULL, 'nothing', false, 'exchange')", "proxy_hold(7, 'orders=34', NULL, NULL, false, 'needed')"} {
			wantCode(t, exec(reader, "SELECT wirefence."+call), "WF006")
		}
		if got := value[string](t, reader, "SELECT wirefence.proxy_hold(7, NULL, NULL, 'nothing', true, 'group')"); got != "checked" {
			t.Errorf("a proxy is told %s", got)
		}
		mustExec(t, reader, unhold)
		standby.wantLocks(t, reader, 0)
	}}
}

// Sessions that hold several resources lock them in one order, whatever the order in the
// fence.
func TestHoldersOfSeveralResourcesDoNotDeadlock(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.looksSoon(t)
		mustExec(t, db.app(t), "SELECT wirefence.check('a=1,b=1,c=1,d=1')")
		done := make(chan error, 3)
		for _, text := range []string{"a=1,b=1,c=1,d=1", "d=1,c=1,b=1,a=1"} {
			app := db.app(t)
			go func() {
				for range 100 {
					if err := exec(app, holdSQL, text); err != nil {
						done <- err
						return
					}
				}
				done <- exec(app, unhold)
			}()
		}
		// One that takes all of them, again and again.
		taking := db.admin(t)
		go func() {
			var err error
			for n := 0; n < 20 && err == nil; n++ {
				err = exec(taking, "SELECT pg_advisory_xact_lock(k) FROM (SELECT wirefence.lock_key(r) AS k FROM unnest('{a,b,c,d}'::text[]) AS r ORDER BY 1) AS u")
			}
			done <- err
		}()
		for range 3 {
			wantCode(t, <-done, "")
		}
	})
}

// A lock may be granted at the moment in which its wait is ended to look for deadlocks. It
// ends with the transaction then.
func TestAWaitThatIsGivenUpKeepsNoLock(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.app(t), "SELECT wirefence.check('orders=1')")
		mustExec(t, db.admin(t), "ALTER DATABASE "+db.name+" SET deadlock_timeout = '1ms'")
		app, taking := db.app(t), db.admin(t)
		for range 100 {
			mustExec(t, taking, "SELECT pg_advisory_lock(wirefence.lock_key('orders'))")
			waiting := make(chan error, 1)
			go func() { waiting <- exec(app, holdSQL, "orders=1") }()
			mustExec(t, taking, "SELECT pg_sleep(0.002 + random() * 0.004), pg_advisory_unlock(wirefence.lock_key('orders'))")
			wantCode(t, <-waiting, "")
			mustExec(t, app, unhold)
			if n := value[int](t, taking, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1", app.PgConn().PID()); n != 0 {
				t.Fatalf("%d locks are left", n)
			}
		}
	})
}

// A READ ONLY transaction with an older snapshot can lock no row. It is refused if the row that
// it sees is not the newest, so it accepts no stale token.
func TestAReadOnlyTransactionWithAnOlderSnapshot(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin, app, issuer := db.admin(t), db.app(t), db.as(t, "issuer")
		const fresh, late = "", "40001"
		for _, isolation := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
			for what, c := range map[string]struct {
				since []string // happens behind the snapshot
				state string
			}{
				"nothing":                      {nil, fresh},
				"a seal":                       {[]string{"SELECT wirefence.seal('orders', 35)"}, late},
				"several seals":                {[]string{"SELECT wirefence.seal('orders', 35)", "SELECT wirefence.seal('orders', 36)", "SELECT wirefence.seal('orders', 37)"}, late},
				"an advance":                   {[]string{"SELECT wirefence.check('orders=35')"}, late},
				"a revocation":                 {[]string{"SELECT wirefence.revoke('orders')"}, late},
				"an aborted seal":              {[]string{"BEGIN; SELECT wirefence.seal('orders', 35); ROLLBACK"}, fresh},
				"a reused version":             {[]string{"BEGIN; SELECT wirefence.seal('orders', 35); ROLLBACK", "vacuum", "SELECT wirefence.seal('another', 1)", "SELECT wirefence.seal('another', 2)"}, fresh},
				"a seal and VACUUM":            {[]string{"SELECT wirefence.seal('orders', 35)", "SELECT wirefence.seal('orders', 36)", "vacuum"}, late},
				"another resource":             {[]string{"SELECT wirefence.seal('another', 9)"}, fresh},
				"locks on the row":             {[]string{"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT wirefence.check('orders=34'); COMMIT", "BEGIN; SELECT wirefence.check('orders=34'); COMMIT"}, fresh},
				"an aborted seal, then a seal": {[]string{"BEGIN; SELECT wirefence.seal('orders', 35); ROLLBACK", "SELECT wirefence.seal('orders', 36)"}, late},
			} {
				for _, begin := range []string{"BEGIN ISOLATION LEVEL " + isolation + " READ ONLY", "BEGIN ISOLATION LEVEL " + isolation} {
					mustExec(t, admin, "TRUNCATE wirefence.resource_locks")
					mustExec(t, issuer, "SELECT wirefence.check('orders=34'), wirefence.check('another=1')")
					snapshot(t, app, begin)
					mustExec(t, app, "SAVEPOINT s; SET TRANSACTION READ ONLY")
					for _, sql := range c.since {
						if sql == "vacuum" {
							mustExec(t, admin, "VACUUM wirefence.resource_locks")
							continue
						}
						mustExec(t, issuer, sql)
					}
					if got := code(exec(app, "SELECT wirefence.check('orders=34')")); got != c.state {
						t.Errorf("%s, behind %s: %q, want %q", begin, what, got, c.state)
					}
					mustExec(t, app, "ROLLBACK")
					if c.state == late {
						mustExec(t, app, begin)
						wantCode(t, exec(app, "SELECT wirefence.check('orders=34')"), "WF001") // the retry
						mustExec(t, app, "ROLLBACK")
					}
				}
			}
			// A version on another page, behind many updates.
			mustExec(t, issuer, "SELECT wirefence.check('moved=1')")
			snapshot(t, app, "BEGIN ISOLATION LEVEL "+isolation+" READ ONLY")
			mustExec(t, issuer, "SELECT wirefence.seal('moved', n) FROM generate_series(2, 300) AS n")
			wantCode(t, exec(app, "SELECT wirefence.check('moved=1')"), late)
			mustExec(t, app, "ROLLBACK")
			// A resource that is new.
			snapshot(t, app, "BEGIN ISOLATION LEVEL "+isolation+" READ ONLY")
			mustExec(t, issuer, "SELECT wirefence.seal('new', 2)")
			wantCode(t, exec(app, "SELECT wirefence.check('new=1')"), late)
			mustExec(t, app, "ROLLBACK")
			mustExec(t, admin, "TRUNCATE wirefence.resource_locks")
			// A check as the first statement takes the snapshot before it waits.
			mustExec(t, issuer, "SELECT wirefence.check('orders=34')")
			mustExec(t, issuer, "BEGIN; SELECT wirefence.seal('orders', 35)")
			mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation+" READ ONLY")
			checked := db.start(t, app, "SELECT wirefence.check('orders=34')")
			mustExec(t, issuer, "COMMIT")
			wantCode(t, <-checked, late)
			mustExec(t, app, "ROLLBACK")
		}
	})
}
