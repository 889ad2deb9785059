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

// A takeover that waits makes its resource wanted until its transaction ends. While it is
// wanted, a proxy takes no hold except for what needs one.
func TestAResourceIsWantedWhileATakeoverWaits(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		db.seal(t, "lines", 34)
		holding, app, issuer, asking := db.app(t), db.app(t), db.as(t, "issuer"), db.as(t, "issuer")
		orders, lines := db.key(t, "orders"), db.key(t, "lines")
		wanted := func(want string) {
			t.Helper()
			if got := value[string](t, asking, "SELECT wirefence.wanted(ARRAY[$1::bigint, $2, $1])::text", lines, orders); got != strings.ReplaceAll(want, "KEY", fmt.Sprint(orders)) {
				t.Errorf("wanted are %s, not %s", got, want)
			}
			db.wantLocks(t, asking, 0)
		}
		marks := func(want int) {
			t.Helper()
			if n := value[int](t, app, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND pid = pg_backend_pid()"); n != want {
				t.Errorf("it has %d marks, want %d", n, want)
			}
		}
		mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = NULL")
		mustExec(t, app, "BEGIN") // a takeover ends no session with a transaction then
		mustExec(t, holding, "BEGIN")
		wanted("{}")
		db.proxyHold(t, holding, first, "orders=34", "nothing", "group", "held SERVER KEY")
		db.proxyHold(t, app, first, "orders=34", "nothing", "group", "held SERVER KEY")
		db.proxyHold(t, app, second, "orders=34", "nothing", "exchange", "held SERVER KEY")
		mustExec(t, issuer, "BEGIN; SET LOCAL lock_timeout = '7 s'")
		sealed := db.start(t, issuer, "SELECT wirefence.seal('orders', 35)")
		mustExec(t, app, "SELECT pg_sleep(0.5)") // over the first look
		wanted("{KEY}")

		db.proxyHold(t, app, first, "orders=34", "same", "exchange", "checked")
		marks(1)
		// The hold of the other proxy lets the check pass the queue, but it is no hold.
		for _, held := range []string{"nothing", "unknown"} {
			db.proxyHold(t, app, first, "orders=34", held, "group", "checked")
			db.proxyHold(t, app, first, "lines=34,orders=34", held, "group", "checked")
			marks(1)
		}
		db.proxyHold(t, app, second, "orders=34", "same", "exchange", "checked")
		marks(0)
		db.proxyHold(t, app, second, "orders=34", "nothing", "exchange", "checked")
		db.proxyHold(t, app, first, "lines=34", "nothing", "group", fmt.Sprintf("held SERVER %d", lines))
		db.proxyHold(t, app, second, "orders=34", "nothing", "needed", "held SERVER KEY") // behind its own check
		mustExec(t, app, "COMMIT")
		mustExec(t, app, "SELECT wirefence.proxy_unhold($1, NULL)", second)
		mustExec(t, holding, "COMMIT; SELECT wirefence.proxy_unhold(1001, NULL)")
		wantCode(t, <-sealed, "")
		wanted("{KEY}")
		if got := value[string](t, issuer, "SHOW lock_timeout"); got != "7s" {
			t.Errorf("the session's lock_timeout is %s", got)
		}
		mustExec(t, issuer, "COMMIT")
		wanted("{}")
	})
}

// Any role can take the wanted key. That keeps no takeover out.
func TestALockOnTheWantedKeyKeepsNoTakeoverOut(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		app, holding, issuer := db.app(t), db.app(t), db.as(t, "issuer")
		const halves = "SELECT %s(($1::bigint << 32 >> 32)::int, ($1::bigint >> 32)::int)"
		mustExec(t, app, fmt.Sprintf(halves, "pg_advisory_lock"), db.key(t, "orders"))
		db.proxyHold(t, holding, first, "orders=34", "nothing", "exchange", "checked")
		db.proxyHold(t, holding, first, "orders=34", "nothing", "needed", "held SERVER KEY")
		mustExec(t, issuer, "SET lock_timeout = '5ms'")
		sealed := db.start(t, issuer, "SELECT wirefence.seal('orders', 35)")
		mustExec(t, holding, "SELECT wirefence.proxy_unhold(1001, NULL)")
		wantCode(t, <-sealed, "")
	})
}

// A session that pauses for less than 250 ms at a time is alive: no takeover ends it before
// preempt_after.
func TestAHolderWithShortPausesIsNotEnded(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		const tries = 5 // a busy machine may make it pause for longer
		for n := 1; ; n++ {
			longest, err := db.holdWithShortPauses(t, fmt.Sprint("orders", n))
			switch {
			case err == nil:
				return
			case longest < 200*time.Millisecond || n == tries:
				t.Fatalf("ended, with pauses of %v at most: %v", longest, err)
			}
		}
	})
}

// holdWithShortPauses runs short statements under a hold while a takeover waits. It returns the
// longest pause, and the error of a session that was ended.
func (db database) holdWithShortPauses(t *testing.T, resource string) (longest time.Duration, err error) {
	db.seal(t, resource, 34)
	mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = NULL")
	app, watching := db.app(t), db.admin(t)
	hold(t, app, resource+"=34")
	sealed := db.start(t, db.as(t, "issuer"), "SELECT wirefence.seal('"+resource+"', 35)")
	for began := time.Now(); time.Since(began) < 1500*time.Millisecond && err == nil; {
		err = exec(app, "SELECT pg_sleep(0.05)")
		paused := time.Now()
		mustExec(t, watching, "SELECT pg_sleep(0.05)")
		longest = max(longest, time.Since(paused))
	}
	if err == nil {
		mustExec(t, app, unhold)
	}
	wantCode(t, <-sealed, "")
	return longest, err
}
