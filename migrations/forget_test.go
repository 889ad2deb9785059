package migrations_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// onQuiet runs a test on each version, on a server of its own: a marked row stays while a transaction
// that is older than the mark has a snapshot, and another test's may be, or autovacuum's.
func onQuiet(t *testing.T, test func(t *testing.T, db database)) {
	t.Helper()
	stack.OnEach(t, stack.Versions(), func(t *testing.T, major int) {
		config := servers.PostgresConfig{Major: major, Settings: map[string]string{"autovacuum": "off"}}
		test(t, withSchema(t, stack.Started(servers.StartPostgres(t.Context(), config)).EndWith(t)))
	})
}

func forget(t *testing.T, issuer *pgx.Conn, resource string) bool {
	t.Helper()
	return value[bool](t, issuer, "SELECT wirefence.forget($1)", resource)
}

func seal(t *testing.T, issuer *pgx.Conn, resource string, token int64) bool {
	t.Helper()
	return value[bool](t, issuer, "SELECT wirefence.seal($1, $2)", resource, token)
}

// Behind a forget the token of a former holder makes no row anew, and no grant repeats one.
func TestAForgottenResourceRepeatsNoToken(t *testing.T) {
	onQuiet(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		seal(t, issuer, "orders", 34)
		seal(t, issuer, "other", 7)
		for _, stage := range []string{"marked", "removed"} {
			if gone := forget(t, issuer, "orders"); gone != (stage == "removed") {
				t.Errorf("%s: forget returned %t", stage, gone)
			}
			for _, check := range []string{
				"SELECT wirefence.check('orders=34')", "SELECT wirefence.check('orders=33')", "SELECT wirefence.check('orders=34@redis')",
				"SELECT wirefence.check('new=34')", "SELECT wirefence.check('other=7,orders=34')",
			} {
				wantCode(t, exec(app, check), "WF003")
			}
			wantCode(t, exec(app, "SELECT wirefence.check('other=7')"), "")
			if n := value[int](t, issuer, "SELECT count(*) FROM wirefence.status() WHERE resource = 'orders'"); n != 0 {
				t.Errorf("%s: status shows it", stage)
			}
		}
		// A store that counts from 1 learns the floor from the row that a failed seal leaves.
		for _, token := range []int64{34, 34, 35} {
			if sealed := seal(t, issuer, "orders", token); sealed != (token == 35) {
				t.Errorf("the seal of %d: %v", token, sealed)
			}
		}
		wantCode(t, exec(app, "SELECT wirefence.check('orders=34')"), "WF001")
		wantCode(t, exec(app, "SELECT wirefence.check('orders=35')"), "")
		if token := value[int64](t, issuer, "SELECT token FROM wirefence.acquire('leased', 'a', '1 min')"); token != 35 {
			t.Errorf("the first lease of an unknown resource has token %d", token)
		}
		// Another service's numbers: those above the floor, and all once the resource is declared.
		wantCode(t, exec(app, "SELECT wirefence.check('service=35')"), "")
		wantCode(t, exec(issuer, "SELECT wirefence.declare_resource('low', 'counts from 1', advance => 'use')"), "")
		wantCode(t, exec(app, "SELECT wirefence.check('low=1')"), "")
		wantCode(t, exec(issuer, "SELECT wirefence.declare_resource('orders2', 'granted here')"), "")
		if seal(t, issuer, "orders2", 34) || !seal(t, issuer, "orders2", 35) {
			t.Error("a declared resource was granted a token that may have been forgotten")
		}
	})
}

// A marked resource counts as unknown, and comes to life by whatever names it.
func TestAMarkedResourceComesToLife(t *testing.T) {
	onQuiet(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		for how, sql := range map[string]string{
			"a seal":        "SELECT wirefence.seal('orders', 35, 'b', 'etcd')",
			"an advance":    "SELECT wirefence.check('orders=35@etcd')",
			"a lease":       "SELECT wirefence.acquire('orders', 'b', '1 min')",
			"a declaration": "SELECT wirefence.declare_resource('orders', 'why', 'etcd', reuse => 'once')",
			"a change":      "SELECT wirefence.set_resource('orders', 'why', advance => 'grant')",
		} {
			mustExec(t, db.admin(t), "TRUNCATE wirefence.resource_locks, wirefence.leases, wirefence.resource_changes; UPDATE wirefence.settings SET floor = 0")
			mustExec(t, issuer, "SELECT wirefence.seal('orders', 34, 'a', 'redis')")
			if forget(t, issuer, "orders") {
				t.Fatal("one transaction marked and removed a row")
			}
			wantCode(t, exec(app, "SELECT wirefence.check('orders=34')"), "WF003")
			wantCode(t, exec(issuer, sql), "")
			if value[int](t, issuer, "SELECT count(*) FROM wirefence.status() WHERE resource = 'orders'") == 0 {
				t.Errorf("%s leaves it forgotten", how)
			}
			if got, kept := code(exec(issuer, "SELECT wirefence.forget('orders')")), how != "a seal" && how != "an advance"; (got == "55000") != kept {
				t.Errorf("behind %s forget got %q", how, got)
			}
		}
	})
}

// A transaction that read the row before it was forgotten, or while it was, gets the lock behind
// the next grant.
func TestASnapshotFromBeforeAForget(t *testing.T) {
	onQuiet(t, func(t *testing.T, db database) {
		admin, app, issuer := db.admin(t), db.app(t), db.as(t, "issuer")
		for _, begin := range []string{
			"BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE",
			"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY",
			"BEGIN", "BEGIN READ ONLY",
		} {
			for _, when := range []string{"before the grant", "before the mark", "behind the mark", "behind the removal"} {
				for _, token := range []string{"34", "40"} { // granted before; and a client's own
					mustExec(t, admin, "TRUNCATE wirefence.resource_locks; UPDATE wirefence.settings SET floor = 0, forgot_grants = false")
					at := func(now string) {
						if when == now {
							snapshot(t, app, begin)
						}
					}
					at("before the grant")
					seal(t, issuer, "orders", 34)
					at("before the mark")
					if forget(t, issuer, "orders") {
						t.Fatal("one transaction marked and removed a row")
					}
					if committed := begin == "BEGIN" || begin == "BEGIN READ ONLY"; !committed && when[:6] == "before" {
						if forget(t, issuer, "orders") {
							t.Errorf("%s %s: the row was removed", begin, when)
						}
					} else {
						at("behind the mark")
						if !forget(t, issuer, "orders") {
							t.Errorf("%s %s: the row is still there", begin, when)
						}
					}
					at("behind the removal")
					if !seal(t, issuer, "orders", 50) {
						t.Fatal("not sealed")
					}
					if got := code(exec(app, "SELECT wirefence.check('orders="+token+"')")); got != "40001" && got != "WF001" && got != "WF003" {
						t.Errorf("%s %s: token %s got %q", begin, when, token, got)
					}
					mustExec(t, app, "ROLLBACK")
				}
			}
		}
	})
}

// A check that stalls between its read of the row and the lock: one statement, in which the
// function has a pause.
func TestACheckThatStallsAcrossAForget(t *testing.T) {
	onQuiet(t, func(t *testing.T, db database) {
		admin, app, issuer := db.admin(t), db.app(t), db.as(t, "issuer")
		mustExec(t, admin, `CREATE FUNCTION public.pause() RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT pg_advisory_lock(4711) IS NOT NULL AND pg_advisory_unlock(4711)';
			DO $$ BEGIN
				EXECUTE replace(pg_get_functiondef('wirefence.check_current'::regproc), 'SELECT pg_catalog.pg_try', 'SELECT public.pause() AND pg_catalog.pg_try');
				EXECUTE replace(pg_get_functiondef('wirefence.check_several'::regproc), 'SELECT count(', 'SELECT count(public.pause()) OPERATOR(pg_catalog.*) 0 OPERATOR(pg_catalog.+) count(');
			END $$`)
		if n := value[int](t, admin, "SELECT count(*) FROM pg_proc WHERE proname = 'check_current' AND prosrc LIKE '%public.pause()%'"); n != 1 {
			t.Fatal("the function has no pause")
		}
		for _, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED READ ONLY", "REPEATABLE READ READ ONLY"} {
			mustExec(t, admin, "TRUNCATE wirefence.resource_locks; UPDATE wirefence.settings SET floor = 0, forgot_grants = false")
			seal(t, issuer, "orders", 34)
			mustExec(t, admin, "SELECT pg_advisory_lock(4711)")
			mustExec(t, app, "BEGIN ISOLATION LEVEL "+level)
			checked := db.start(t, app, "SELECT wirefence.check('orders=34')")
			for range 2 {
				if forget(t, issuer, "orders") {
					t.Errorf("%s: the row was removed under a statement that has read it", level)
				}
			}
			seal(t, issuer, "orders", 35)
			mustExec(t, admin, "SELECT pg_advisory_unlock(4711)")
			if got := code(<-checked); got != "WF001" && got != "40001" {
				t.Errorf("%s: a stale token got %q", level, got)
			}
			mustExec(t, app, "ROLLBACK")
		}
	})
}

// A resource that is in use stays, and so does one with a policy that would be lost.
func TestWhatIsNotForgotten(t *testing.T) {
	onQuiet(t, func(t *testing.T, db database) {
		admin, app, issuer := db.admin(t), db.app(t), db.as(t, "issuer")
		mustExec(t, admin, `CREATE TABLE reports (tenant text NOT NULL, id int NOT NULL); CREATE TABLE bills (id int);
			SELECT wirefence.protect('reports', 'report_%:{tenant}:{id}'), wirefence.protect('bills', 'bills'); GRANT CREATE ON SCHEMA public TO app`)
		mustExec(t, app, "CREATE TABLE strangers (name text); SELECT wirefence.protect('strangers', '{name}'), wirefence.check('advances=1')")
		for _, name := range []string{"report_%:acme:17", "report_%:acme", "reportx%:acme:17", "bills", "used", "held", "leased", "expired", "set", "once", "free", "meanwhile"} {
			seal(t, issuer, name, 3)
		}
		mustExec(t, issuer, `SELECT wirefence.seal('high', 4000000000000000000), wirefence.acquire('leased', 'a', '1 min'), wirefence.acquire('expired', 'a', '1 microsecond'),
			wirefence.set_resource('set', 'why', preempt_after => '1 s'), wirefence.declare_resource('declared', 'why')`)
		mustExec(t, admin, "UPDATE wirefence.resource_locks SET reuse = 'once' WHERE resource_id = 'once'")
		holder := db.app(t)
		mustExec(t, holder, "SET wirefence.token = 'held=3'")
		mustExec(t, holder, holdSQL, nil)
		mustExec(t, app, "BEGIN; SELECT wirefence.check('used=3'), wirefence.check('advances=2')")
		for name, state := range map[string]string{
			"report_%:acme:17": "55000", "report_%:acme": "", "reportx%:acme:17": "", "bills": "55000", "used": "55000", "advances": "55000", "held": "55000", "leased": "55000",
			"expired": "", "set": "55000", "once": "55000", "high": "55000", "declared": "55000", "free": "", "never": "",
		} {
			if got := code(exec(issuer, "SELECT wirefence.forget($1)", name)); got != state {
				t.Errorf("%s: %q, want %q", name, got, state)
			}
		}
		wantCode(t, exec(issuer, "SELECT wirefence.forget('meanwhile', 2)"), "55000")
		wantCode(t, exec(issuer, "SELECT wirefence.forget('meanwhile', 3)"), "")
		mustExec(t, app, "ROLLBACK")
		wantCode(t, exec(app, "SELECT wirefence.forget('free')"), "42501")
		if n := value[int](t, issuer, "SELECT count(*) FROM wirefence.forgettable('1 hour') WHERE NOT forgotten"); n != 0 {
			t.Errorf("%d resources are listed as unused for an hour", n)
		}
		if got := column[string](t, issuer, "SELECT resource FROM wirefence.forgettable('0') WHERE NOT forgotten"); len(got) != 3 { // advances, held and used: only forget sees that
			t.Errorf("listed: %q", got)
		}
		mustExec(t, issuer, "SELECT wirefence.forget(resource) FROM wirefence.forgettable('1 hour')")
		if n := value[int](t, admin, "SELECT (SELECT count(*) FROM wirefence.forgettable('1 hour')) + (SELECT count(*) FROM wirefence.leases WHERE resource_id = 'expired')"); n != 0 {
			t.Errorf("%d marked rows, or the expired lease, are left", n)
		}
		mustExec(t, issuer, "SELECT wirefence.set_undeclared('refuse', 'why')")
		wantCode(t, exec(issuer, "SELECT wirefence.forget('held')"), "55000")
	})
}

// A promotion may lose the last grant of a resource, whose former rows have all been forgotten.
func TestAPromotionBehindAForget(t *testing.T) {
	onQuiet(t, func(t *testing.T, db database) {
		admin, app, issuer := db.admin(t), db.app(t), db.as(t, "issuer")
		seal(t, issuer, "orders", 34)
		forget(t, issuer, "orders")
		forget(t, issuer, "orders")
		mustExec(t, admin, "UPDATE wirefence.settings SET began_under = 'another server'")
		wantCode(t, exec(app, "SELECT wirefence.check('orders=35')"), "WF001")
		if seal(t, issuer, "orders", 35) {
			t.Error("a token that a promotion may have lost was granted again")
		}
		wantCode(t, exec(app, "SELECT wirefence.check('orders=35')"), "WF001")
	})
}

// An operator's change of a resource that is being forgotten is not lost: forget waits for it, and
// leaves the resource alone.
func TestAnOperatorsChangeDuringAForget(t *testing.T) {
	onQuiet(t, func(t *testing.T, db database) {
		app, issuer, operator := db.app(t), db.as(t, "issuer"), db.as(t, "issuer")
		for i, change := range []string{"declare_resource('r', 'why', advance => 'use', reuse => 'once')", "set_resource('r', 'why', reuse => 'once', advance => 'use')"} {
			seal(t, issuer, "r", int64(51+i))
			if i == 0 {
				mustExec(t, issuer, "SELECT wirefence.forget('r')")
			}
			mustExec(t, operator, "BEGIN; SELECT wirefence."+change)
			forgets := db.start(t, issuer, "SELECT wirefence.forget('r')")
			mustExec(t, operator, "COMMIT")
			wantCode(t, <-forgets, "55000")
			mustExec(t, app, "SELECT wirefence.check($1)", fmt.Sprintf("r=%d", 60+i))
			wantCode(t, exec(app, "SELECT wirefence.check($1)", fmt.Sprintf("r=%d", 60+i)), "WF005")
			mustExec(t, db.admin(t), "DELETE FROM wirefence.resource_locks; DELETE FROM wirefence.resource_changes")
		}
	})
}
