package migrations_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// looksSoon makes later connections look for deadlocks after a short wait.
func (db database) looksSoon(t *testing.T) {
	t.Helper()
	mustExec(t, db.admin(t), "ALTER DATABASE "+db.name+" SET deadlock_timeout = '50ms'")
}

// inOrder returns two resources with current token 1: first the one that a check of both
// locks first.
func (db database) inOrder(t *testing.T) (early, late string) {
	t.Helper()
	mustExec(t, db.app(t), "SELECT wirefence.check('a=1,b=1')")
	names := look[[]string](t, db, "SELECT array_agg(n ORDER BY wirefence.lock_key(n)) FROM unnest(ARRAY['a', 'b']) AS n")
	return names[0], names[1]
}

// Of two transactions that wait for each other, the one that locked out of order is
// aborted, whichever came first, and the other does not notice.
func TestWhoWaitsOutOfOrderGivesWay(t *testing.T) {
	for name, c := range map[string]struct{ ordered, first, second string }{
		"an advance": {"check('%s=1')", "check('%s=2')", "check('%s=2')"},
		"a check":    {"check('%s=2')", "check('%s=2')", "check('%s=1')"},
		"a seal":     {"check('%s=1')", "seal('%s', 2)", "seal('%s', 2)"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, db database) {
				db.looksSoon(t)
				early, late := db.inOrder(t)
				ordered, astray, clock := db.app(t), db.as(t, "issuer"), db.admin(t)
				for _, orderedWaitsFirst := range []bool{true, false} {
					mustExec(t, ordered, "BEGIN")
					mustExec(t, ordered, fmt.Sprintf("SELECT wirefence."+c.ordered, early))
					mustExec(t, astray, "BEGIN")
					mustExec(t, astray, fmt.Sprintf("SELECT wirefence."+c.first, late))
					second := fmt.Sprintf("SELECT wirefence."+c.second, early)
					const more = "SELECT wirefence.check($1 || '=1')"
					var err, finished error
					if orderedWaitsFirst {
						waiting := db.start(t, ordered, more, late)
						mustExec(t, clock, "SELECT pg_sleep(0.2)") // until it has looked, and will not again
						err = exec(astray, second)
						mustExec(t, astray, "ROLLBACK")
						finished = <-waiting
					} else {
						waiting := db.start(t, astray, second)
						mustExec(t, clock, "SELECT pg_sleep(0.2)")
						done := make(chan error, 1)
						go func() { done <- exec(ordered, more, late) }()
						err = <-waiting
						mustExec(t, astray, "ROLLBACK")
						finished = <-done
					}
					wantCode(t, err, "40001")
					if pgErr := (*pgconn.PgError)(nil); !errors.As(err, &pgErr) || pgErr.Hint == "" {
						t.Errorf("it isn't told what to do: %v", err)
					}
					wantCode(t, finished, "")
					mustExec(t, ordered, "ROLLBACK")
				}
			})
		})
	}
}

// A deadlock through a lock of the application, in which all transactions wait in order
// for resources, ends, too.
func TestACircleThroughAnotherLockEnds(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.looksSoon(t)
		_, late := db.inOrder(t)
		const own = "SELECT pg_advisory_xact_lock(1, 2)"
		one, two := db.app(t), db.app(t)
		mustExec(t, one, "BEGIN")
		mustExec(t, one, own)
		mustExec(t, two, "BEGIN")
		mustExec(t, two, "SELECT wirefence.check($1 || '=2')", late)
		finished := db.start(t, two, own)
		mustExec(t, db.admin(t), "SELECT pg_sleep(0.2)") // it has looked, and will not again
		wantCode(t, exec(one, "SELECT wirefence.check($1 || '=1')", late), "40001")
		mustExec(t, one, "ROLLBACK")
		wantCode(t, <-finished, "")
	})
}

// A session that waits for a takeover waits at most its own lock_timeout, which stays set
// afterwards.
func TestTheClientsLockTimeoutHolds(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		early, _ := db.inOrder(t)
		holder, waiter := db.app(t), db.app(t)
		mustExec(t, holder, "BEGIN")
		mustExec(t, holder, "SELECT wirefence.check($1 || '=2')", early)
		mustExec(t, waiter, "SET lock_timeout = '100ms'")
		for _, isolation := range isolations {
			mustExec(t, waiter, "BEGIN ISOLATION LEVEL "+isolation)
			wantCode(t, exec(waiter, "SELECT wirefence.check($1 || '=1')", early), "55P03")
			mustExec(t, waiter, "ROLLBACK")
		}
		if got := value[string](t, waiter, "SHOW lock_timeout"); got != "100ms" {
			t.Errorf("lock_timeout is left at %s", got)
		}
	})
}

// A transaction that waits for one of its resources has those ahead of it, in the order of their keys.
func TestLocksAreTakenInOrder(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		early, late := db.inOrder(t)
		app, taking := db.app(t), db.admin(t)
		for held, locks := range map[string]int{early: 0, late: 1} {
			mustExec(t, taking, "SELECT pg_advisory_lock(wirefence.lock_key($1))", held)
			waiting := db.start(t, app, "SELECT wirefence.check($1)", late+"=1,"+early+"=1")
			db.wantLocks(t, app, locks)
			mustExec(t, taking, "SELECT pg_advisory_unlock_all()")
			wantCode(t, <-waiting, "")
		}
	})
}
