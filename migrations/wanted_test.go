package migrations_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

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
