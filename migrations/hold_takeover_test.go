package migrations_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// asleep waits until a session has been idle for longer than the time after which a
// takeover terminates it.
func (db database) asleep(t *testing.T, conns ...*pgx.Conn) {
	t.Helper()
	watching := db.admin(t)
	for _, conn := range conns {
		for !value[bool](t, watching, "SELECT state = 'idle' AND state_change < clock_timestamp() - interval '0.3 s' FROM pg_stat_activity WHERE pid = $1", conn.PgConn().PID()) {
			mustExec(t, watching, "SELECT pg_sleep(0.01)")
		}
	}
}

// An idle session with a hold belongs to a frozen proxy or to a client that pauses: a
// takeover terminates it soon, whatever preempt_after says.
//
// Evidence: I7
func TestIdleHoldersAreEndedSoon(t *testing.T) {
	for name, takeover := range map[string]string{
		"seal": "seal('orders', 35)", "advance": "check('orders=35')", "revoke": "revoke('orders')", "set": "set_resource('orders', 'why', last_token => 35)",
	} {
		for _, preemptAfter := range []string{"NULL", "'5 s'"} {
			t.Run(name+" "+preemptAfter, func(t *testing.T) {
				onEach(t, func(t *testing.T, db database) {
					issuer := db.as(t, "issuer")
					if name == "advance" {
						issuer = db.app(t) // it ends only what its own login could
					}
					mustExec(t, issuer, "SELECT wirefence.check('orders=34')")
					mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = "+preemptAfter)
					var idle []*pgx.Conn
					for range 4 {
						conn := db.app(t)
						hold(t, conn, "orders=34")
						idle = append(idle, conn)
					}
					db.asleep(t, idle...)
					began := time.Now()
					mustExec(t, issuer, "SELECT wirefence."+takeover)
					if took := time.Since(began); took > 2500*time.Millisecond { // 0.3 s where nothing else runs
						t.Errorf("taken over after %v", took)
					}
					for _, conn := range idle {
						if exec(conn, "SELECT 1") == nil {
							t.Error("an idle holder was not ended")
						}
					}
				})
			})
		}
	}
}

// A holder with an open transaction is terminated only after preempt_after, and never if
// that is never.
//
// Evidence: I7
func TestHoldersInATransactionAreEndedAfterPreemptAfter(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		app, issuer := db.app(t), db.as(t, "issuer")
		mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = NULL")
		hold(t, app, "orders=34")
		mustExec(t, app, "BEGIN; SELECT 1")
		sealed := db.start(t, issuer, "SELECT wirefence.seal('orders', 35)")
		mustExec(t, db.admin(t), "SELECT pg_sleep(1)")
		mustExec(t, app, strings.Replace(insert, "$1", "34", 1)+"; COMMIT; "+unhold)
		wantCode(t, <-sealed, "")

		mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = '700 ms'")
		hold(t, app, "orders=35")
		mustExec(t, app, "BEGIN; SELECT 1")
		began := time.Now()
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 36)")
		if took := time.Since(began); took < 700*time.Millisecond || took > 3*time.Second {
			t.Errorf("sealed after %v", took)
		}
		if exec(app, "COMMIT") == nil {
			t.Error("a stuck holder committed")
		}
	})
}

// A session that holds without a pause, with one short transaction after the other, is
// terminated soon after preempt_after: each of its transactions has another virtual
// transaction id.
func TestABusyHolderIsEndedAfterPreemptAfter(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = '500 ms'")
		app := db.app(t)
		hold(t, app, "orders=34")
		ended := make(chan error, 1)
		go func() {
			for {
				if err := exec(app, "SELECT 1"); err != nil {
					ended <- err
					return
				}
			}
		}()
		began := time.Now()
		db.seal(t, "orders", 35)
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("sealed after %v", took)
		}
		if err := <-ended; err == nil {
			t.Error("it goes on")
		}
	})
}

// Any role can take an advisory lock. No such lock blocks a takeover for longer than
// preempt_after, nor makes it wait elsewhere.
func TestAnAdvisoryLockKeepsNoTakeoverOut(t *testing.T) {
	for name, c := range map[string]struct{ begin, lock string }{
		"exclusive, idle":             {"", "pg_advisory_lock(%d)"},
		"exclusive, in a transaction": {"BEGIN; ", "pg_advisory_xact_lock(%d)"},
		"shared, in a transaction":    {"BEGIN; ", "pg_advisory_lock_shared(%d)"},
		"with a number announced": {"BEGIN; ", `pg_advisory_lock(%d), pg_advisory_lock_shared(hashtext('wirefence high orders'), 2147483647),
			pg_advisory_lock_shared(hashtext('wirefence low orders'), -1)`},
		"with an xid, and a number announced": {"BEGIN; SELECT wirefence.check('mine=1'); ", `pg_advisory_lock(%d), pg_advisory_lock_shared(hashtext('wirefence high orders'), 2147483647),
			pg_advisory_lock_shared(hashtext('wirefence low orders'), -1)`},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, db database) {
				db.seal(t, "orders", 34)
				mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = '400 ms'")
				key := look[int64](t, db, "SELECT wirefence.lock_key('orders')")
				app, issuer := db.app(t), db.as(t, "issuer")
				mustExec(t, app, fmt.Sprintf(c.begin+"SELECT "+c.lock, key))
				mustExec(t, issuer, "SET statement_timeout = '10 s'")
				began := time.Now()
				mustExec(t, issuer, "SELECT wirefence.seal('orders', 35)")
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("sealed after %v", took)
				}
				if exec(app, "SELECT 1") == nil {
					t.Error("whoever kept it out was not ended")
				}
			})
		})
	}
	// The keys by which a takeover announces its token are nobody's to guess.
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		mustExec(t, app, "SELECT pg_advisory_lock(hashtext('wirefence high orders'), 0), pg_advisory_lock(hashtext('wirefence low orders'), 35)")
		mustExec(t, issuer, "SET statement_timeout = '10 s'; SELECT wirefence.seal('orders', 35)")
	})
}

// A client cannot use up the tokens of a resource, nor set their source, before the first
// seal.
//
// Evidence: I3
func TestNobodyUsesUpAResource(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		mustExec(t, issuer, "SELECT wirefence.declare_resource('payroll', 'why')")
		for _, c := range []struct{ text, state string }{
			{"fresh=9223372036854775807", "WF003"}, {"fresh=4611686018427387904", "WF003"}, {"fresh=4611686018427387903@evil", ""},
			{"fresh=4611686018427387904", "WF003"}, {"payroll=1", "WF003"}, {"payroll=4611686018427387903", "WF003"}, {"named=1@evil", ""},
		} {
			wantCode(t, exec(app, "SELECT wirefence.check($1)", c.text), c.state)
		}
		for resource, want := range map[string]int64{"fresh": 4611686018427387904, "payroll": 1, "named": 2} {
			if got := value[int64](t, issuer, "SELECT token FROM wirefence.acquire($1, 'w', '1 min')", resource); got != want {
				t.Errorf("%s: granted %d, want %d", resource, got, want)
			}
			if got := db.source(t, resource); got != "postgres" {
				t.Errorf("%s: the source is %q", resource, got)
			}
		}
		mustExec(t, app, "SELECT wirefence.check('fresh=4611686018427387904')")
		hold(t, app, "fresh=4611686018427387904")
	})
}

// The attacks on holds that the functions themselves must withstand.
func TestNoStaleWriteUnderAHold(t *testing.T) {
	write := strings.Replace(insert, "$1", "34", 1)
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		next := int64(34)
		seal := func() {
			t.Helper()
			next++
			mustExec(t, issuer, "SELECT wirefence.seal('orders', $1, 'w')", next)
		}
		db.seal(t, "orders", next)
		refused := func(when string) {
			t.Helper()
			if err := exec(app, holdSQL, fmt.Sprintf("orders=%d", next-1)); err == nil {
				t.Errorf("%s: held token %d beside %d", when, next-1, next)
			}
			db.wantLocks(t, app, 0)
		}
		// An older snapshot, that of a READ ONLY transaction as well.
		for _, begin := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "BEGIN ISOLATION LEVEL REPEATABLE READ"} {
			snapshot(t, app, begin)
			seal()
			refused(begin)
			mustExec(t, app, "ROLLBACK")
		}
		snapshot(t, app, "BEGIN ISOLATION LEVEL REPEATABLE READ")
		mustExec(t, app, "SAVEPOINT s; SET TRANSACTION READ ONLY")
		seal()
		refused("in a savepoint that is READ ONLY")
		mustExec(t, app, "ROLLBACK")
		// A session that is so by default.
		mustExec(t, app, "SET default_transaction_isolation = 'repeatable read'; SET default_transaction_read_only = on")
		refused("by default")
		mustExec(t, app, "RESET ALL")
		// A rollback neither releases a hold nor restores one.
		current := fmt.Sprintf("orders=%d", next)
		mustExec(t, app, "BEGIN; SAVEPOINT s")
		hold(t, app, current)
		mustExec(t, app, "ROLLBACK TO s; ROLLBACK")
		db.wantLocks(t, app, 2)
		mustExec(t, app, "BEGIN; SAVEPOINT s; "+unhold+"; ROLLBACK TO s; ROLLBACK")
		db.wantLocks(t, app, 0)
		// A check under a hold, given back within the transaction, still keeps takeovers out.
		hold(t, app, current)
		mustExec(t, app, "BEGIN; SELECT wirefence.check('"+current+"'); "+write+"; "+unhold)
		sealed := db.start(t, issuer, "SELECT wirefence.seal('orders', $1)", next+1)
		mustExec(t, app, "COMMIT")
		wantCode(t, <-sealed, "")
		next++
		refused("behind it all")
	})
}

// If a required fence is missing, the transaction becomes READ ONLY, and nothing in it
// reverts that except on the server versions that allow it.
func TestARequiredFenceThatIsMissing(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := db.app(t)
		db.seal(t, "orders", 1)
		const required = "SELECT coalesce(wirefence.check(NULL, NULL, true, false), '')"
		write := strings.Replace(insert, "$1", "34", 1)
		for _, isolation := range isolations {
			for _, behind := range []string{"SELECT 1", "SAVEPOINT s", "SAVEPOINT s; ROLLBACK TO s", "SAVEPOINT s; RELEASE s", "SELECT wirefence.check('orders=1')", "SET wirefence.token = 'orders=1'"} {
				mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation)
				for _, want := range []string{"unfenced", "none"} { // the second one makes nothing READ ONLY
					if got := value[string](t, app, required); got != want {
						t.Errorf("got %q", got)
					}
				}
				mustExec(t, app, behind)
				wantCode(t, exec(app, write), "25006")
				mustExec(t, app, "ROLLBACK; RESET ALL")
			}
			mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation)
			value[string](t, app, required)
			wantCode(t, exec(app, "SET TRANSACTION READ WRITE"), "25001")
			mustExec(t, app, "ROLLBACK")
		}
		for call, want := range map[string]string{"NULL, NULL, false, false": "none", "NULL, NULL, NULL, NULL": "none", "NULL, NULL, true, true": "unfenced", "'orders=1', NULL, true, false": ""} {
			mustExec(t, app, "BEGIN")
			if got := value[string](t, app, "SELECT coalesce(wirefence.check("+call+"), '')"); got != want {
				t.Errorf("check(%s) says %q", call, got)
			}
			mustExec(t, app, write+"; ROLLBACK")
		}
		mustExec(t, app, "SET wirefence.token = ''; BEGIN READ ONLY")
		if got := value[string](t, app, required); got != "none" {
			t.Errorf("in a READ ONLY transaction: %q", got)
		}
	})
}
