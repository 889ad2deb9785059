package migrations_test

import (
	"strings"
	"testing"
)

// A table may be guarded without its parent. A write through the parent fires no
// statement trigger of the table.
func TestATableGuardedAloneIsGuardedThroughItsParent(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := guarded(t, db), db.as(t, "issuer")
		mustExec(t, app, `SELECT wirefence.unprotect('parts'), wirefence.unprotect('base');
			SELECT wirefence.protect('parts_low', 'orders'), wirefence.protect('heir', 'orders'), wirefence.protect('free', 'orders');
			SET wirefence.token = 'orders=34'; INSERT INTO heir VALUES (7, 'a'); RESET wirefence.token`)
		for _, sql := range []string{
			"INSERT INTO parts VALUES (2, 'x')", "UPDATE parts SET item = 'x' WHERE id = 1", "DELETE FROM parts WHERE id = 1",
			"UPDATE base SET item = 'x' WHERE id = 7", "DELETE FROM base WHERE id = 7",
		} {
			wantCode(t, exec(app, sql), "WF002")
			mustExec(t, app, "BEGIN; SET LOCAL wirefence.token = 'orders=34'")
			wantCode(t, exec(app, sql), "")
			mustExec(t, app, "ROLLBACK")
		}
		mustExec(t, app, "INSERT INTO parts VALUES (102, 'x'); UPDATE base SET item = 'x' WHERE id = 1") // what isn't guarded
		// One that gets a parent later is found.
		faults := "SELECT count(*) FROM wirefence.guarded() WHERE relation = 'public.free' AND fault LIKE '%has got a parent since%'"
		if n := value[int](t, issuer, faults); n != 0 {
			t.Error("a fault before there is one")
		}
		mustExec(t, app, "CREATE TABLE later (id int); ALTER TABLE free INHERIT later")
		if n := value[int](t, issuer, faults); n != 1 {
			t.Error("a guarded table that has got a parent is not found")
		}
		mustExec(t, app, "SELECT wirefence.protect('free', 'orders')")
		if n := value[int](t, issuer, faults); n != 0 {
			t.Error("protecting again doesn't mend it")
		}
	})
}

// A null in a template's column belongs to no resource, also in a session without any
// check.
func TestANullInATemplateInAFreshSession(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		guarded(t, db)
		wantCode(t, exec(db.app(t), "INSERT INTO reports VALUES (5, NULL)"), "WF002")
		admin := db.admin(t)
		mustExec(t, admin, "CREATE ROLE "+db.name+"_bypass LOGIN IN ROLE wirefence_bypass; GRANT INSERT ON reports TO "+db.name+"_bypass")
		t.Cleanup(func() {
			mustExec(t, admin, "DROP OWNED BY "+db.name+"_bypass; DROP ROLE "+db.name+"_bypass")
		})
		mustExec(t, db.as(t, db.name+"_bypass"), "INSERT INTO reports VALUES (5, NULL)")
	})
}

// A shadow check changes nothing for the session: it does not count refusals, and keeps
// lastval.
func TestWhatIsOnlyLookedAtIsNotCounted(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, "SELECT wirefence.protect('orders', 'orders', true); CREATE SEQUENCE own START 42; SELECT nextval('own')")
		mustExec(t, db.as(t, "issuer"), "SELECT wirefence.set_resource('lines', 'a trial', mode => 'shadow')")
		counted := func() int64 { return look[int64](t, db, "SELECT last_value FROM wirefence.refusals") }
		before := counted()
		for _, sql := range []string{
			"SELECT wirefence.check('lines=33', NULL, false, true), wirefence.check('x', NULL, false, true), wirefence.check(NULL, NULL, true, true)",
			"SELECT wirefence.check('lines=33')",
			"SET wirefence.token = 'orders=33'; UPDATE orders SET item = 'x'", "SET wirefence.token = 'x'; UPDATE orders SET item = 'x'",
		} {
			mustExec(t, app, sql)
			if got := value[int](t, app, "SELECT lastval()"); got != 42 {
				t.Errorf("%s: lastval is %d", sql, got)
			}
		}
		if n := counted() - before; n != 0 {
			t.Errorf("counted %d", n)
		}
		mustExec(t, app, "RESET wirefence.token")
		wantCode(t, exec(app, "SELECT wirefence.check('orders=33')"), "WF001")
		if n := counted() - before; n != 1 {
			t.Errorf("counted %d of one refusal", n)
		}
	})
}

// Guards accept an earlier check of the transaction, whatever the session variable holds,
// until the variable changes.
func TestGuardsHeedWhatWasChecked(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		const row, orders = "UPDATE reports SET body = 'x' WHERE id = 1", "UPDATE orders SET item = 'x' WHERE id = 1"
		for _, session := range []string{"report:a:1=33,orders=33", "34", ""} {
			mustExec(t, app, "SELECT set_config('wirefence.token', $1, false)", session)
			mustExec(t, app, "BEGIN; SELECT wirefence.check('report:a:1=34,orders=34')")
			wantCode(t, exec(app, row), "")
			wantCode(t, exec(app, orders), "")
			mustExec(t, app, "SET LOCAL wirefence.token = 'orders=33,report:a:1=33'; SAVEPOINT a")
			if session != "report:a:1=33,orders=33" {
				wantCode(t, exec(app, orders), "WF001")
				mustExec(t, app, "ROLLBACK TO a")
				wantCode(t, exec(app, row), "WF001")
			}
			mustExec(t, app, "ROLLBACK")
		}
		mustExec(t, app, "SELECT set_config('wirefence.token', 'report:b:1=33', false)")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('report:a:1=34')")
		wantCode(t, exec(app, "UPDATE reports SET tenant = 'b' WHERE id = 1"), "WF001")
		mustExec(t, app, "ROLLBACK")
	})
}

// A second fence of a transaction, with a higher token, is recorded by the guard.
func TestAHigherTokenLaterInATransactionIsRecorded(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		for _, c := range []struct{ resource, sql string }{{"free", "INSERT INTO free VALUES (1)"}, {"note:a", "INSERT INTO notes VALUES ('a')"}} {
			if c.resource == "free" {
				mustExec(t, app, "SELECT wirefence.protect('free', 'free'); CREATE TABLE notes (id text); SELECT wirefence.protect('notes', 'note:{id}')")
			}
			for _, begin := range []string{"SET LOCAL wirefence.token = '" + c.resource + "=5'; " + c.sql, "SELECT wirefence.check('" + c.resource + "=7')"} {
				mustExec(t, app, "BEGIN; "+begin)
				mustExec(t, app, "SET LOCAL wirefence.token = '"+c.resource+"=9'; "+c.sql)
				mustExec(t, app, "COMMIT")
				if got := db.lastToken(t, c.resource); got != 9 {
					t.Errorf("%s: the last token is %d", c.resource, got)
				}
				mustExec(t, db.admin(t), "DELETE FROM wirefence.resource_locks WHERE resource_id = $1", c.resource)
			}
		}
	})
}

// Each refusal counts once, whichever function raises it, except that of a hold in a transaction
// of its own: the proxy reports the statement that it refuses.
func TestEveryRefusalIsCounted(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := guarded(t, db), db.as(t, "issuer")
		mustExec(t, issuer, "SELECT wirefence.declare_resource('single', 'once', advance => 'use', reuse => 'once')")
		mustExec(t, app, "SELECT wirefence.check('single=1'); SELECT wirefence.protect('free', 'free:{id}')")
		mustExec(t, issuer, "SELECT wirefence.set_undeclared('refuse', 'why')")
		for _, c := range []struct{ fence, sql, state string }{
			{"", "SELECT wirefence.check('orders=33')", "WF001"},
			{"", "SELECT wirefence.check('lines=34,orders=33')", "WF001"},
			{"", "SELECT wirefence.hold('orders=33')", "WF001"},
			{"", "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT wirefence.hold('orders=34')", "WF006"},
			{"", "SELECT wirefence.proxy_hold(7, 'orders=33', NULL, 'nothing', false, 'group')", "WF001"},
			{"", "SELECT wirefence.proxy_hold(7, 'lines=34,orders=33', NULL, NULL, false, 'group')", "WF001"},
			{"", "SELECT wirefence.proxy_hold(7, 'orders=33', NULL, 'nothing', false, 'exchange')", "WF001"},
			{"", "SELECT wirefence.proxy_hold(7, 'lines=34,orders=33', NULL, NULL, false, 'needed')", "WF001"},
			{"", "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT wirefence.proxy_hold(7, 'orders=34', NULL, NULL, false, 'exchange')", "WF006"},
			{"", "SELECT wirefence.check('orders=35')", "WF003"},
			{"", "SELECT wirefence.check('orders=034')", "WF004"},
			{"", "SELECT wirefence.check('single=1')", "WF005"},
			{"", "SELECT wirefence.check('unheard=1')", "WF008"},
			{"", "INSERT INTO orders VALUES (70, 'x')", "WF002"},
			{"orders=33", "INSERT INTO orders VALUES (70, 'x')", "WF001"},
			{"lines=34", "INSERT INTO orders VALUES (70, 'x')", "WF002"},
			{"orders=", "INSERT INTO orders VALUES (70, 'x')", "WF004"},
			{"report:a:1=33", "UPDATE reports SET body = 'x' WHERE id = 1", "WF001"},
			{"", "UPDATE reports SET body = 'x' WHERE id = 1", "WF002"},
			{"", "INSERT INTO free VALUES (NULL)", "WF002"}, // belongs to no resource
			{"", "TRUNCATE reports", "WF006"},
		} {
			mustExec(t, app, "SELECT set_config('wirefence.token', $1, false)", c.fence)
			counted := func() int64 { return look[int64](t, db, "SELECT last_value FROM wirefence.refusals") }
			before := counted()
			wantCode(t, exec(app, c.sql), c.state)
			mustExec(t, app, "ROLLBACK")
			want := int64(1)
			if strings.Contains(c.sql, "wirefence.hold(") || strings.Contains(c.sql, "'exchange'") || strings.Contains(c.sql, "'needed'") {
				want = 0
			}
			if n := counted() - before; n != want {
				t.Errorf("%q, %s: counted %d", c.fence, c.sql, n)
			}
		}
	})
}
