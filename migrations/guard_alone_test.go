package migrations_test

import (
	"fmt"
	"strings"
	"testing"
)

// A table may be guarded without its parent. A write through the parent fires no
// statement trigger of the table.
func TestATableGuardedAloneIsGuardedThroughItsParent(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
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
	})
}

// A guarded table may get a parent later, as when a live table is renamed and attached to a
// partitioned one in its place. A write through the parent fires no statement trigger of it.
func TestATableThatGetsAParentStaysGuarded(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, `CREATE TABLE heir2 (id int, item text); CREATE TABLE family (id int, item text); SELECT wirefence.protect('heir2', 'orders');
			BEGIN; SET LOCAL wirefence.token = 'orders=34'; INSERT INTO heir2 VALUES (1, 'a'); COMMIT; ALTER TABLE heir2 INHERIT family;
			DROP TABLE lines; ALTER TABLE orders RENAME TO orders_2025; CREATE TABLE orders (LIKE orders_2025) PARTITION BY RANGE (id)`)
		for _, parent := range []string{"SELECT 'not guarded'", "SELECT wirefence.protect('orders', 'orders')"} {
			mustExec(t, app, parent+"; ALTER TABLE orders ATTACH PARTITION orders_2025 FOR VALUES FROM (0) TO (100)")
			for _, sql := range []string{
				"INSERT INTO orders VALUES (50, 'x')", "UPDATE orders SET item = 'x' WHERE id = 2", "DELETE FROM orders WHERE id = 2", "COPY orders FROM PROGRAM 'echo 51,x' WITH (FORMAT csv)",
				"UPDATE family SET item = 'x'", "DELETE FROM family",
			} {
				conn := app
				if strings.HasPrefix(sql, "COPY") {
					conn = db.admin(t)
				}
				for fence, state := range map[string]string{"": "WF002", "lines=34": "WF002", "orders=33": "WF001", "orders=34": ""} {
					mustExec(t, conn, "BEGIN; SET LOCAL wirefence.token = '"+fence+"'")
					wantCode(t, exec(conn, sql), state)
					mustExec(t, conn, "ROLLBACK")
				}
			}
			mustExec(t, app, "ALTER TABLE orders DETACH PARTITION orders_2025")
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

// Guards accept an earlier check of the transaction, whatever the session variable holds, also
// where it changes behind the check.
func TestGuardsHeedWhatWasChecked(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		const row, orders = "UPDATE reports SET body = 'x' WHERE id = 1", "UPDATE orders SET item = 'x' WHERE id = 1"
		for _, session := range []string{"report:a:1=33,orders=33", "34", ""} {
			mustExec(t, app, "SELECT set_config('wirefence.token', $1, false)", session)
			mustExec(t, app, "BEGIN; SELECT wirefence.check('report:a:1=34,orders=34')")
			for _, then := range []string{"SELECT 1", "SET LOCAL wirefence.token = 'orders=33'", "RESET wirefence.token"} {
				mustExec(t, app, then)
				if session == "34" && then == "SELECT 1" {
					continue // a template's guard checks the whole fence of the session, which is malformed
				}
				wantCode(t, exec(app, orders), "")
			}
			mustExec(t, app, "ROLLBACK")
		}
		mustExec(t, app, "SELECT set_config('wirefence.token', 'report:b:1=33', false)")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('report:a:1=34')")
		wantCode(t, exec(app, "UPDATE reports SET tenant = 'b' WHERE id = 1"), "WF001")
		mustExec(t, app, "ROLLBACK; RESET wirefence.token; BEGIN; SELECT wirefence.check('report:a:1=34,orders=34')")
		wantCode(t, exec(app, row+"; "+orders), "")
		mustExec(t, app, "ROLLBACK")
	})
}

// Names with the characters that separate the entries of wirefence.checked pass for no other.
func TestANamePassesForNoOther(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, "CREATE TABLE notes (id text NOT NULL); SELECT wirefence.protect('notes', 'n:{id}')")
		for _, name := range []string{"x,orders=34,y", "x,orders", "(shadow)orders", "orders%3D34"} {
			db.seal(t, name, 34)
			db.seal(t, "n:"+name, 34)
			encoded := strings.NewReplacer("%", "%25", ",", "%2C", "=", "%3D", "(", "%28", ")", "%29").Replace(name)
			mustExec(t, app, "BEGIN; SELECT wirefence.check('"+encoded+"=34,n:"+encoded+"=34')")
			mustExec(t, app, "INSERT INTO notes VALUES ('"+name+"')")
			wantCode(t, exec(app, "UPDATE orders SET item = 'x'"), "WF002")
			mustExec(t, app, "ROLLBACK")
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
			if strings.Contains(c.sql, "'exchange'") || strings.Contains(c.sql, "'needed'") {
				want = 0
			}
			if n := counted() - before; n != want {
				t.Errorf("%q, %s: counted %d", c.fence, c.sql, n)
			}
		}
	})
}

// A role that may only grant wirefence_bypass, as its creator may from 16 on, is not a
// member.
func TestWhoMayGrantBypassIsNoMember(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		guarded(t, db)
		mustExec(t, db.admin(t), fmt.Sprintf("CREATE ROLE %[1]s_maker LOGIN IN ROLE app", db.name))
		maker, grant := db.as(t, db.name+"_maker"), "GRANT wirefence_bypass TO "+db.name+"_maker WITH "
		if db.Major >= 16 {
			mustExec(t, db.admin(t), grant+"ADMIN TRUE, INHERIT FALSE, SET FALSE")
			wantCode(t, exec(maker, "UPDATE orders SET item = 'x'"), "WF002")
			mustExec(t, db.admin(t), grant+"SET TRUE")
		} else { // all members are alike there
			mustExec(t, db.admin(t), grant+"ADMIN OPTION")
		}
		mustExec(t, maker, "UPDATE orders SET item = 'x'")
	})
}

// Only an existing guard records shadow rows and bypasses.
func TestNotesAreOfGuardsThatStand(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, "CREATE TABLE trial (id int); SELECT wirefence.protect('trial', 'trial', true)")
		mustExec(t, db.as(t, "issuer"), "SELECT wirefence.declare_resource('quiet', 'a trial', mode => 'shadow')")
		mustExec(t, db.admin(t), fmt.Sprintf("CREATE ROLE %[1]s_fixer LOGIN IN ROLE app, wirefence_bypass; DELETE FROM wirefence.history", db.name))
		mustExec(t, app, `CREATE FUNCTION calls() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN EXECUTE TG_ARGV[0]; RETURN NULL; END'`)
		for i, call := range []string{"guard_shadowed('orders', 'payroll', 'WF001')", "guard_shadowed('trial', 'payroll')", "guard_shadowed('orders', 'orders')", "guard_shadowed('trial', 'trial', 'x')"} {
			mustExec(t, app, fmt.Sprintf("CREATE TEMP TABLE own%[1]d (id int); CREATE TRIGGER t AFTER INSERT ON own%[1]d EXECUTE FUNCTION calls('SELECT wirefence.%[2]s'); INSERT INTO own%[1]d VALUES (1)",
				i, strings.ReplaceAll(call, "'", "''")))
		}
		db.wantNoted(t)
		wantCode(t, exec(app, "SELECT wirefence.guard_unchecked('free', 'quiet')"), "WF002")
		db.wantNoted(t)
		wantCode(t, exec(db.as(t, db.name+"_fixer"), "SELECT wirefence.guard_unchecked('pg_class', 'orders')"), "WF002")
		if n := look[int](t, db, "SELECT count(*) FROM wirefence.bypasses"); n != 0 {
			t.Errorf("%d bypasses recorded", n)
		}
	})
}
