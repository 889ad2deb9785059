package migrations_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The numbers of two proxies in one session.
const first, second = 1001, -2002

// proxyHold asks as a proxy does for a fence that is given, and requires the answer. It may
// have SERVER and KEY.
func (db database) proxyHold(t *testing.T, conn *pgx.Conn, number int, fence, held, manner, want string) {
	t.Helper()
	got := value[string](t, conn, "SELECT wirefence.proxy_hold($1, $2, NULL, nullif($3, 'unknown'), false, $4)", number, fence, held, manner)
	if want = db.heldAnswer(t, want); got != want {
		t.Errorf("%s of %s with %s by %d: %q, want %q", manner, fence, held, number, got, want)
	}
}

// heldAnswer puts the server, and the lock of orders, into an answer: SERVER and KEY.
func (db database) heldAnswer(t *testing.T, want string) string {
	t.Helper()
	server := look[string](t, db, "SELECT wirefence.identity()")
	return strings.NewReplacer("SERVER", server, "KEY", fmt.Sprint(db.key(t, "orders"))).Replace(want)
}

// key returns the lock of a resource.
func (db database) key(t *testing.T, resource string) int64 {
	t.Helper()
	return look[int64](t, db, "SELECT wirefence.lock_key($1)", resource)
}

func TestAProxyIsToldAllByOneCall(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer, admin := db.app(t), db.as(t, "issuer"), db.admin(t)
		mustExec(t, admin, known)
		db.seal(t, "orders", 34)
		mustExec(t, issuer, "SELECT wirefence.declare_resource('trial', 'why', mode => 'shadow'), wirefence.seal('trial', 34)")
		const all = "group exchange needed"
		for _, c := range []struct {
			manner, fence, want string
			locks               int // left behind a commit
		}{
			{all, "orders=34", "held SERVER KEY", 2},
			{all, "orders=34,orders=34@etcd", "held SERVER KEY", 2},
			{all, "orders=33", "WF001", 0}, {all, "orders=35", "WF003", 0}, {all, "orders", "WF004", 0}, {all, "orders=34,granted=33", "WF001", 0},
			{all, "once=34", "once", 0}, {all, "orders=34,once=34", "once", 0},
			{"observe", "orders=33", "WF001", 0}, {"observe", "orders=34", "checked", 0},
			{all, "trial=34", "shadow", 0}, {all, "orders=34,trial=34", "checked", 0},
			{"group", "orders=34,trial=33", `WF001: stale fencing token for resource "trial"`, 0}, {"exchange needed", "orders=34,trial=33", "checked", 0},
			{all, "trial=33", `WF001: stale fencing token for resource "trial"`, 0},
		} {
			for _, manner := range strings.Fields(c.manner) {
				for _, held := range []string{"nothing", "same", "unknown"} {
					if held == "same" && strings.HasPrefix(c.want, "WF00") {
						continue
					}
					mustExec(t, admin, "UPDATE wirefence.resource_locks SET used_token = NULL, used_xid = NULL WHERE resource_id = 'once'")
					if held != "nothing" {
						mustExec(t, app, "SELECT wirefence.proxy_hold($1, 'orders=34', NULL, 'nothing', false, 'group')", first)
					}
					if held == "same" && c.fence != "orders=34" {
						mustExec(t, app, "SELECT wirefence.proxy_unhold($1, NULL)", first)
						held = "nothing"
					}
					var got string
					err := app.QueryRow(t.Context(), "SELECT wirefence.proxy_hold($1, $2, NULL, nullif($3, 'unknown'), false, $4)", first, c.fence, held, manner).Scan(&got)
					if err != nil {
						got = code(err)
					}
					if want := db.heldAnswer(t, c.want); got != want && !strings.HasPrefix(got, want+". ") {
						t.Errorf("%s of %s, with %s: %q, want %q", manner, c.fence, held, got, want)
					}
					const locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
					if n := value[int](t, app, locks); n != c.locks {
						t.Errorf("%s of %s, with %s: %d locks", manner, c.fence, held, n)
					}
					mustExec(t, app, "SELECT wirefence.proxy_unhold($1, NULL)", first)
				}
			}
		}
		for _, manner := range strings.Fields(all) {
			if got := value[string](t, app, "SELECT wirefence.proxy_hold(1, NULL, NULL, 'nothing', false, $1)", manner); got != "none" {
				t.Errorf("%s without a fence: %s", manner, got)
			}
		}
	})
}

// A token that has to be recorded is recorded and held in the proxy's own transaction. In the
// client's, which may be rolled back, it is only recorded.
func TestAProxyHoldsANewToken(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := db.app(t)
		for token, manner := range []string{"exchange", "needed", "exchange"} {
			fence := fmt.Sprintf("orders=%d", token+1)
			db.proxyHold(t, app, first, fence, "unknown", manner, "held SERVER KEY")
			db.wantLocks(t, app, 2)
			if got := db.lastToken(t, "orders"); got != int64(token)+1 {
				t.Errorf("%s is recorded as %d", fence, got)
			}
		}
		db.proxyHold(t, app, first, "orders=3@zk", "unknown", "exchange", "held SERVER KEY")
		if got := db.source(t, "orders"); got != "zk" {
			t.Errorf("the source is %q", got)
		}
		mustExec(t, app, fmt.Sprintf("SELECT wirefence.proxy_unhold(%d, NULL); BEGIN", first))
		db.proxyHold(t, app, first, "orders=4", "nothing", "group", "checked")
		mustExec(t, app, "ROLLBACK; BEGIN READ ONLY")
		db.proxyHold(t, app, first, "orders=4", "nothing", "needed", "checked")
		mustExec(t, app, "COMMIT")
		db.wantLocks(t, app, 0)
		if got := db.lastToken(t, "orders"); got != 3 {
			t.Errorf("%d is recorded", got)
		}
		db.proxyHold(t, app, first, "orders=4", "nothing", "group", "checked")
		db.proxyHold(t, app, first, "orders=4", "nothing", "group", "held SERVER KEY")
		// A takeover that waits in the queue meanwhile waits on.
		issuer := db.as(t, "issuer")
		mustExec(t, app, fmt.Sprintf("SELECT wirefence.proxy_unhold(%d, NULL); BEGIN; SELECT wirefence.check('orders=5')", first))
		sealed := db.start(t, issuer, "SELECT wirefence.seal('orders', 6)")
		db.proxyHold(t, app, first, "orders=5", "nothing", "needed", "held SERVER KEY")
		mustExec(t, app, "COMMIT")
		db.wantLocks(t, app, 2)
		mustExec(t, app, "SELECT wirefence.proxy_unhold($1, ARRAY[$2::bigint])", first, db.key(t, "orders"))
		wantCode(t, <-sealed, "")
	})
}

// A transaction that is not READ COMMITTED gives no verdict for longer than itself.
func TestAProxyHoldsInReadCommitted(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		app := db.app(t)
		for _, isolation := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
			for _, held := range []string{"nothing", "same", "unknown"} {
				mustExec(t, app, "SELECT wirefence.proxy_hold($1, 'orders=34', NULL, NULL, false, 'group')", first)
				if held == "nothing" {
					mustExec(t, app, "SELECT wirefence.proxy_unhold($1, NULL)", first)
				}
				mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation)
				db.proxyHold(t, app, first, "orders=34", held, "group", "apart")
				db.wantLocks(t, app, 1) // of the check
				mustExec(t, app, "COMMIT")
				db.wantLocks(t, app, 0)
				for _, manner := range []string{"exchange", "needed"} {
					mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation)
					wantCode(t, exec(app, "SELECT wirefence.proxy_hold($1, 'orders=34', NULL, 'nothing', false, $2)", first, manner), "WF006")
					mustExec(t, app, "ROLLBACK")
					db.wantLocks(t, app, 0)
				}
			}
		}
		mustExec(t, app, "BEGIN")
		if got := value[string](t, app, "SELECT wirefence.proxy_hold(1, NULL, NULL, 'nothing', true, 'group')"); got != "none" {
			t.Errorf("without a fence: %s", got)
		}
		wantCode(t, exec(app, strings.Replace(insert, "$1", "34", 1)), "25006")
		mustExec(t, app, "ROLLBACK")
	})
}

// A hold reads the row ahead of its lock, and finds it superseded where a takeover commits between
// the two.
//
// Evidence: I2
func TestAHoldWhoseRowIsSupersededAheadOfItsLock(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		app, taking := db.app(t), db.admin(t)
		db.proxyHold(t, app, first, "orders=34", "unknown", "needed", "held SERVER KEY")
		mustExec(t, db.admin(t), `CREATE OR REPLACE FUNCTION wirefence.is_wanted(key bigint) RETURNS boolean LANGUAGE plpgsql AS
			$$ BEGIN PERFORM pg_advisory_xact_lock_shared(99); RETURN false; END $$`)
		mustExec(t, taking, "SELECT pg_advisory_lock(99)")
		waiting := db.start(t, app, "SELECT wirefence.proxy_hold($1, 'orders=34', NULL, 'same', false, 'group')", first)
		db.seal(t, "orders", 35)
		mustExec(t, taking, "SELECT pg_advisory_unlock(99)")
		wantCode(t, <-waiting, "WF001")
		db.wantLocks(t, app, 0)
	})
}

// noticing connects as a role and keeps the notices of the server.
func (db database) noticing(t *testing.T, role string) (*pgx.Conn, *[]*pgconn.Notice) {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.URLFor(role, db.name))
	if err != nil {
		t.Fatal(err)
	}
	var notices []*pgconn.Notice
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n) }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn, &notices
}

// Two proxies hold in one session. Each releases its own hold, without a warning, and the locks
// of the application stay, whatever their mode and the form of their key.
func TestEachPartyReleasesItsOwnHold(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		db.seal(t, "lines", 34)
		app, notices := db.noticing(t, "app")
		watching := db.admin(t)
		mustExec(t, app, `SELECT pg_advisory_lock_shared(1), pg_advisory_lock_shared(1), pg_advisory_lock_shared(-5), pg_advisory_lock(2), pg_advisory_lock_shared(3, 4),
			pg_advisory_lock(5, 6), pg_advisory_lock(0, 7), pg_advisory_lock(7), pg_advisory_lock_shared(0, 8)`)
		own := len(db.locks(t, app))
		both := "lines=34,orders=34"
		take := func(number int, manner string) {
			t.Helper()
			mustExec(t, app, "SELECT wirefence.proxy_hold($1, $2, NULL, NULL, false, $3)", number, both, manner)
		}
		release := map[int]string{
			first:  fmt.Sprintf("SELECT wirefence.proxy_unhold(%d, NULL)", first),
			second: fmt.Sprintf("SELECT wirefence.proxy_unhold(%d, ARRAY[%d, %d])", second, db.key(t, "orders"), db.key(t, "lines")),
		}
		for _, order := range [][]int{{first, second}, {second, first}} {
			for _, number := range order {
				take(number, "group")
				take(number, "exchange") // it releases its own hold first
			}
			db.wantLocks(t, app, own+2+2*2) // pg_locks shows each key once, and each mark
			for i, number := range order {
				mustExec(t, app, release[number])
				mustExec(t, app, release[number])
				db.wantLocks(t, app, own+[]int{2 + 2, 0}[i])
				if free := value[bool](t, watching, "SELECT pg_try_advisory_xact_lock(wirefence.lock_key('orders'))"); free != (i == 1) {
					t.Errorf("after %v, by %d: free is %v", order, number, free)
				}
			}
		}
		// A hold that another proxy fails to take leaves this one as well.
		take(first, "group")
		wantCode(t, exec(app, "SELECT wirefence.proxy_hold($1, 'orders=33', NULL, NULL, false, 'group')", second), "WF001")
		db.wantLocks(t, app, own+2+2)
		mustExec(t, app, release[first])
		// A hold that a proxy takes twice, because it does not know of the first, is released.
		for range 2 {
			mustExec(t, app, "SELECT wirefence.proxy_hold($1, 'orders=34', NULL, 'nothing', false, 'group')", first)
		}
		mustExec(t, app, release[first])
		db.wantLocks(t, app, own)
		// A hold that was already released is not released again.
		for _, unlock := range []string{"SELECT pg_advisory_unlock_all()", "DISCARD ALL"} {
			take(first, "group")
			mustExec(t, app, unlock)
			mustExec(t, app, release[first])
			db.wantLocks(t, app, 0)
		}
		if len(*notices) > 0 {
			t.Errorf("told %q", (*notices)[0].Message)
		}
	})
}

// A backend's own locks do not conflict with each other, so a session takes over nothing that it
// holds, for any proxy.
//
// Evidence: I2
func TestNoTakeoverUnderAProxysHold(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		mustExec(t, issuer, "SELECT wirefence.check('orders=34'), wirefence.check('lines=34')")
		for _, number := range []int{first, second, 2147483647, -2147483648} {
			mustExec(t, issuer, "SELECT wirefence.proxy_hold($1, 'orders=34', NULL, 'nothing', false, 'group')", number)
			for _, call := range []string{
				"seal('orders', 35)", "seal('orders', 35, 'w', 'etcd')", "revoke('orders')", "check('orders=35')", "acquire('orders', 'w', '1 min')", "set_resource('orders', 'why', last_token => 40)",
				"proxy_hold(7, 'orders=35', NULL, 'nothing', false, 'exchange')",
			} {
				err := exec(issuer, "SELECT wirefence."+call)
				wantCode(t, err, "55006")
				if pgErr, ok := err.(*pgconn.PgError); !ok || pgErr.Hint == "" {
					t.Errorf("%s: it isn't told what to do: %v", call, err)
				}
			}
			mustExec(t, issuer, "SELECT wirefence.check('orders=35', NULL, false, true)") // in shadow mode it refuses nothing
			if got := db.lastToken(t, "orders"); got != 34 {
				t.Errorf("token %d is recorded by the holder of 34", got)
			}
			mustExec(t, issuer, "SELECT wirefence.check('lines=34'), wirefence.check('orders=34'), wirefence.set_resource('orders', 'why', preempt_after => '1 s')")
			mustExec(t, issuer, "SELECT wirefence.proxy_unhold($1, ARRAY[$2::bigint])", number, db.key(t, "orders"))
		}
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 35)")
		// A lock of the transaction is no hold.
		mustExec(t, issuer, "SELECT wirefence.check('other=1'); BEGIN; SELECT wirefence.check('other=1'); SELECT wirefence.check('other=2'); COMMIT")
	})
}

// A hold that fails, or that is cancelled while it waits, leaves nothing of its number and
// everything of the others.
func TestAProxysHoldThatFailsIsReleased(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		early, late := db.inOrder(t)
		app, taking := db.app(t), db.app(t)
		both := early + "=1," + late + "=1"
		mustExec(t, app, "SELECT wirefence.proxy_hold($1, $2, NULL, NULL, false, 'needed')", second, early+"=1")
		mustExec(t, taking, "BEGIN; SELECT wirefence.check('"+late+"=2')")
		for _, manner := range []string{"group", "exchange", "needed"} {
			for setting, state := range map[string]string{"lock_timeout": "55P03", "statement_timeout": "57014"} {
				for _, fence := range []string{both, late + "=1"} {
					mustExec(t, app, "SET "+setting+" = '100ms'")
					wantCode(t, exec(app, "SELECT wirefence.proxy_hold($1, $2, NULL, 'nothing', false, $3)", first, fence, manner), state)
					db.wantLocks(t, app, 2)
					mustExec(t, app, "RESET "+setting)
				}
			}
			waiting := db.start(t, app, "SELECT wirefence.proxy_hold($1, $2, NULL, NULL, false, $3)", first, both, manner)
			mustExec(t, db.admin(t), "SELECT pg_cancel_backend($1)", app.PgConn().PID())
			wantCode(t, <-waiting, "57014")
			db.wantLocks(t, app, 2)
		}
		mustExec(t, taking, "ROLLBACK")
		// It is cancelled when it has the locks already, and reads the row.
		locking := db.admin(t)
		mustExec(t, locking, "BEGIN; LOCK TABLE wirefence.resource_locks")
		for _, held := range []string{"nothing", "same"} {
			mustExec(t, app, "SET statement_timeout = '100ms'")
			wantCode(t, exec(app, "SELECT wirefence.proxy_hold($1, $2, NULL, $3, false, 'group')", first, late+"=1", held), "57014")
			mustExec(t, app, "RESET statement_timeout")
			db.wantLocks(t, app, 2)
		}
		mustExec(t, locking, "ROLLBACK")
		// Another session's lock with the key of the mark makes nobody wait.
		mustExec(t, db.admin(t), "SELECT pg_advisory_lock((k >> 32)::int, (k & 4294967295)::bit(32)::int # $2) FROM wirefence.lock_key($1) AS k", late, first)
		for _, manner := range []string{"group", "exchange", "needed"} {
			db.proxyHold(t, app, first, both, "nothing", manner, "checked")
			db.proxyHold(t, app, first, late+"=1", "nothing", manner, "checked")
			db.wantLocks(t, app, 2)
		}
	})
}
