package migrations_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// locks lists the advisory locks of a session: bigint keys, and pairs as mode:class/key.
func (db database) locks(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	return column[string](t, db.admin(t), fmt.Sprintf(`SELECT concat(mode, ':', classid, '/', objid, '/', objsubid) FROM pg_locks
		WHERE locktype = 'advisory' AND granted AND pid = %d ORDER BY 1`, conn.PgConn().PID()))
}

// hold asks for a hold and requires an answer.
func hold(t *testing.T, conn *pgx.Conn, text string, want bool) {
	t.Helper()
	if got := value[bool](t, conn, "SELECT wirefence.hold($1)", text); got != want {
		t.Errorf("hold(%s) is %v", text, got)
	}
}

func (db database) wantLocks(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	if got := db.locks(t, conn); len(got) != n {
		t.Errorf("has %d locks, want %d: %q", len(got), n, got)
	}
}

func TestAHoldKeepsTakeoversOut(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		app := db.app(t)
		for _, c := range []struct{ variable, call string }{
			{"", "hold('orders=34')"}, {"orders=34", "hold()"},
		} {
			mustExec(t, app, "SELECT set_config('wirefence.token', $1, false)", c.variable)
			if !value[bool](t, app, "SELECT wirefence."+c.call) {
				t.Fatalf("%s: not held", c.call)
			}
			db.wantLocks(t, app, 2) // the key, and the mark beside it
		}
		if n := value[int](t, db.as(t, "issuer"), "SELECT writers FROM wirefence.status()"); n != 1 {
			t.Errorf("%d writers", n)
		}
		sealed := db.start(t, db.as(t, "issuer"), "SELECT wirefence.seal('orders', 35)")
		// Whatever the session does meanwhile is under the hold.
		mustExec(t, app, "BEGIN; SAVEPOINT s; SELECT 1; ROLLBACK TO s; "+strings.Replace(insert, "$1", "34", 1)+"; COMMIT")
		wantCode(t, exec(app, "SELECT 1/0"), "22012")
		mustExec(t, app, "CREATE TEMP TABLE own (id int)")
		mustExec(t, app, "CREATE INDEX CONCURRENTLY ON own (id)")
		if got := db.lastToken(t, "orders"); got != 34 {
			t.Fatalf("sealed %d under a hold", got)
		}
		mustExec(t, app, "SELECT wirefence.unhold()")
		wantCode(t, <-sealed, "")
		db.wantLocks(t, app, 0)
		wantCode(t, exec(app, "SELECT wirefence.hold('orders=34')"), "WF001")
		db.wantLocks(t, app, 0)
	})
}

// Nothing is held if a check has to write, or to judge each transaction.
func TestWhatIsNotHeld(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		mustExec(t, db.admin(t), known)
		mustExec(t, issuer, "SELECT wirefence.declare_resource('trial', 'why', mode => 'shadow')")
		for _, text := range []string{"new=1", "used=35", "used=34@zk", "once=34", "spent=34", "single=34", "trial=1", "used=34,new=1", "granted=34,once=34"} {
			hold(t, app, "used=34,granted=34", true)
			hold(t, app, text, false)
			db.wantLocks(t, app, 0)
		}
		if value[bool](t, app, "SELECT wirefence.hold()") {
			t.Error("held no fence")
		}
		for _, text := range []string{"used=33", "granted=35", "used=34,granted=33", "etcd=34@zk", "used=4611686018427387904", "", "used"} {
			hold(t, app, "used=34", true)
			wantCode(t, exec(app, "SELECT wirefence.hold($1)", text), value[string](t, app, "SELECT left(wirefence.check($1, NULL, false, true), 5)", text))
			db.wantLocks(t, app, 0)
		}
		// A token that a check has recorded can be held.
		mustExec(t, app, "SELECT wirefence.check('new=1'), wirefence.check('used=34@zk')")
		hold(t, app, "new=1,used=34@zk,strict=34@etcd", true)
		db.wantLocks(t, app, 6)
		mustExec(t, app, "BEGIN READ ONLY")
		hold(t, app, "new=1", true)
		hold(t, app, "brandnew=1", false)
		mustExec(t, app, "COMMIT")
		db.wantLocks(t, app, 0)
	})
}

// The verdict of a hold outlives the transaction, so no older snapshot may give it.
func TestAHoldIsReadInReadCommitted(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		app := db.app(t)
		for _, isolation := range []string{"REPEATABLE READ", "SERIALIZABLE", "REPEATABLE READ READ ONLY", "SERIALIZABLE READ ONLY, DEFERRABLE"} {
			hold(t, app, "orders=34", true)
			mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation)
			err := exec(app, "SELECT wirefence.hold('orders=34')")
			wantCode(t, err, "WF006")
			if pgErr, ok := err.(*pgconn.PgError); !ok || !strings.Contains(pgErr.Hint, "READ COMMITTED") {
				t.Errorf("it isn't told what to do: %v", err)
			}
			mustExec(t, app, "ROLLBACK")
			db.wantLocks(t, app, 0)
		}
		for _, isolation := range []string{"READ COMMITTED", "READ UNCOMMITTED", "READ COMMITTED READ ONLY"} {
			mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation)
			hold(t, app, "orders=34", true)
			mustExec(t, app, "ROLLBACK") // which leaves it
			db.wantLocks(t, app, 2)
		}
		// A hold that waited has the verdict from after the wait.
		mustExec(t, app, "SELECT wirefence.unhold()")
		taking := db.as(t, "issuer")
		mustExec(t, taking, "BEGIN; SELECT wirefence.seal('orders', 35)")
		waiting := db.start(t, app, "SELECT wirefence.hold('orders=34')")
		mustExec(t, taking, "COMMIT")
		wantCode(t, <-waiting, "WF001")
		db.wantLocks(t, app, 0)
	})
}

// A repeated hold releases its locks first, so a waiting takeover proceeds.
func TestAHoldTakenAnewLetsATakeoverIn(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		app := db.app(t)
		for range 3 {
			hold(t, app, "orders=34", true)
			db.wantLocks(t, app, 2)
		}
		key := look[int64](t, db, "SELECT wirefence.lock_key('orders')")
		mustExec(t, app, "SELECT pg_advisory_unlock_shared($1), pg_advisory_unlock_shared(($1::bigint >> 32)::int, ($1::bigint & 4294967295)::bit(32)::int)", key)
		db.wantLocks(t, app, 0) // it was held once
		hold(t, app, "orders=34", true)
		sealed := db.start(t, db.as(t, "issuer"), "SELECT wirefence.seal('orders', 35)")
		wantCode(t, exec(app, "SELECT wirefence.hold('orders=34')"), "WF001")
		wantCode(t, <-sealed, "")
		db.wantLocks(t, app, 0)
	})
}

// Busy sessions that repeat their holds at intervals let a takeover through at once.
func TestATakeoverComesThroughBusyHolds(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		var busy atomic.Int64
		ended := make(chan error, 8)
		for range 8 {
			app := db.app(t)
			hold(t, app, "orders=34", true)
			go func() {
				for {
					busy.Add(1)
					for range 5 {
						if err := exec(app, "WITH slow AS MATERIALIZED (SELECT pg_sleep(0.005)) INSERT INTO public.writes SELECT 'orders', 34, 'x' FROM slow"); err != nil {
							ended <- err
							return
						}
					}
					if err := exec(app, "SELECT wirefence.hold('orders=34')"); err != nil {
						ended <- err
						return
					}
				}
			}()
		}
		watching := db.admin(t)
		for busy.Load() < 24 {
			mustExec(t, watching, "SELECT pg_sleep(0.01)")
		}
		began := time.Now()
		db.seal(t, "orders", 35)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("sealed after %v", took)
		}
		before := db.writes(t, 34)
		for range 8 {
			wantCode(t, <-ended, "WF001") // and none was ended
		}
		if after := db.writes(t, 34); after != before {
			t.Errorf("%d rows of the old token at the seal, %d later", before, after)
		}
	})
}

// noticing connects as app and keeps the notices of the server.
func (db database) noticing(t *testing.T) (*pgx.Conn, *[]string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.URLFor(url.PathEscape("app"), db.name))
	if err != nil {
		t.Fatal(err)
	}
	var notices []string
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n.Severity+": "+n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn, &notices
}

// The locks of the application stay its own, whatever their mode and the form of their
// key, and releasing a hold causes no warning.
func TestUnholdLeavesTheApplicationsLocks(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		db.seal(t, "lines", 34)
		app, notices := db.noticing(t)
		mustExec(t, app, `SELECT pg_advisory_lock_shared(1), pg_advisory_lock_shared(1), pg_advisory_lock_shared(-5), pg_advisory_lock(2), pg_advisory_lock_shared(3, 4),
			pg_advisory_lock(5, 6), pg_advisory_lock(0, 7), pg_advisory_lock(7), pg_advisory_lock_shared(0, 8)`)
		own := db.locks(t, app)
		for range 2 {
			mustExec(t, app, "SELECT wirefence.unhold()")
			for _, text := range []string{"orders=34", "lines=34", "orders=34,lines=34"} {
				hold(t, app, text, true)
			}
			db.wantLocks(t, app, len(own)+4)
			mustExec(t, app, "SELECT wirefence.unhold(); SELECT wirefence.unhold()")
			if got := db.locks(t, app); strings.Join(got, " ") != strings.Join(own, " ") {
				t.Errorf("has %q, had %q", got, own)
			}
		}
		// A check's lock is the transaction's.
		mustExec(t, app, "BEGIN; SELECT wirefence.check('orders=34'), wirefence.unhold()")
		db.wantLocks(t, app, len(own)+1)
		mustExec(t, app, "COMMIT")
		// A hold that was already released is not released again.
		for _, release := range []string{"SELECT pg_advisory_unlock_all()", "DISCARD ALL"} {
			hold(t, app, "orders=34", true)
			mustExec(t, app, release)
			db.wantLocks(t, app, 0)
			mustExec(t, app, "SELECT wirefence.unhold()")
		}
		if len(*notices) > 0 {
			t.Errorf("told %q", *notices)
		}
	})
}

// A hold that waits without success has taken nothing, whether it is cancelled, times
// out, or is aborted in a deadlock.
func TestAHoldThatFailsIsGivenBack(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		early, late := db.inOrder(t)
		app, taking := db.app(t), db.app(t)
		both := early + "=1," + late + "=1"
		mustExec(t, taking, "BEGIN; SELECT wirefence.check('"+late+"=2')")
		mustExec(t, app, "SET lock_timeout = '100ms'")
		wantCode(t, exec(app, "SELECT wirefence.hold($1)", both), "55P03")
		db.wantLocks(t, app, 0)
		mustExec(t, app, "RESET lock_timeout; SET statement_timeout = '100ms'")
		wantCode(t, exec(app, "SELECT wirefence.hold($1)", both), "57014")
		db.wantLocks(t, app, 0)
		mustExec(t, app, "RESET statement_timeout")
		waiting := db.start(t, app, "SELECT wirefence.hold($1)", both)
		db.wantLocks(t, app, 1) // the first, for the transaction
		mustExec(t, db.admin(t), "SELECT pg_cancel_backend($1)", app.PgConn().PID())
		wantCode(t, <-waiting, "57014")
		db.wantLocks(t, app, 0)
		// Another session's lock with the key of the mark makes nobody wait.
		mustExec(t, taking, "ROLLBACK")
		squatter := db.admin(t)
		mustExec(t, squatter, "SELECT pg_advisory_lock((k >> 32)::int, (k & 4294967295)::bit(32)::int) FROM wirefence.lock_key($1) AS k", late)
		hold(t, app, both, false)
		db.wantLocks(t, app, 0)
	})
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
					if err := exec(app, "SELECT wirefence.hold($1)", text); err != nil {
						done <- err
						return
					}
				}
				done <- exec(app, "SELECT wirefence.unhold()")
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
			go func() { waiting <- exec(app, "SELECT wirefence.hold('orders=1')") }()
			mustExec(t, taking, "SELECT pg_sleep(0.002 + random() * 0.004), pg_advisory_unlock(wirefence.lock_key('orders'))")
			wantCode(t, <-waiting, "")
			mustExec(t, app, "SELECT wirefence.unhold()")
			if n := value[int](t, taking, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1", app.PgConn().PID()); n != 0 {
				t.Fatalf("%d locks are left", n)
			}
		}
	})
}

// A backend's own locks do not conflict with each other, so a session with a hold can
// take over only after unhold.
func TestAHolderCanNotTakeOverFromItself(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		mustExec(t, issuer, "SELECT wirefence.check('orders=34'), wirefence.check('lines=34')")
		hold(t, issuer, "orders=34", true)
		for _, call := range []string{
			"seal('orders', 35)", "seal('orders', 35, 'w', 'etcd')", "revoke('orders')", "check('orders=35')", "acquire('orders', 'w', '1 min')",
			"set_resource('orders', 'why', last_token => 40)",
		} {
			err := exec(issuer, "SELECT wirefence."+call)
			wantCode(t, err, "55006")
			if pgErr, ok := err.(*pgconn.PgError); !ok || !strings.Contains(pgErr.Hint, "wirefence.unhold()") {
				t.Errorf("it isn't told what to do: %v", err)
			}
		}
		mustExec(t, issuer, "SELECT wirefence.check('orders=35', NULL, false, true)") // in shadow mode it refuses nothing
		if got := db.lastToken(t, "orders"); got != 34 {
			t.Errorf("token %d is recorded by the holder of 34", got)
		}
		mustExec(t, issuer, "SELECT wirefence.seal('lines', 35), wirefence.check('orders=34'), wirefence.set_resource('orders', 'why', preempt_after => '1 s')")
		mustExec(t, issuer, "SELECT wirefence.unhold(); SELECT wirefence.seal('orders', 35)")
		// A lock of the transaction is no hold.
		mustExec(t, issuer, "SELECT wirefence.check('other=1'); BEGIN; SELECT wirefence.check('other=1'); SELECT wirefence.check('other=2'); COMMIT")
	})
}
