package migrations_test

import (
	"strings"
	"testing"
)

// A fence in application_name counts for checks and guards once an operator has said so, and until
// it is taken back, in sessions that are open, too.
func TestAFenceInTheName(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := guarded(t, db), db.as(t, "issuer")
		const write, current, stale = "UPDATE orders SET item = 'x'", "wirefence:orders=34~nightly job", "wirefence:orders=33~nightly job"
		named := func(name, sql, state string) {
			t.Helper()
			mustExec(t, app, "SELECT set_config('application_name', $1, false)", name)
			if err := exec(app, sql); code(err) != state {
				t.Errorf("%s as %q: %v, want %q", sql, name, err, state)
			}
		}
		named(current, write, "WF002")
		named(stale, "SELECT wirefence.check()", "")
		if got := value[string](t, app, "SELECT wirefence.check(NULL, NULL, false, false)"); got != "none" {
			t.Errorf("a check while names don't count: %q", got)
		}
		for _, c := range []struct{ call, state string }{{"(true, '')", "22023"}, {"(NULL, 'why')", "22023"}, {"(true, 'the pooler keeps names')", ""}} {
			wantCode(t, exec(issuer, "SELECT wirefence.set_carry_name"+c.call), c.state)
		}
		wantCode(t, exec(app, "SELECT wirefence.set_carry_name(false, 'why')"), "42501")

		for _, isolation := range isolations {
			mustExec(t, app, "SET default_transaction_isolation = '"+isolation+"'")
			for _, c := range []struct{ name, state string }{
				{"psql", "WF002"}, {current, ""}, {stale, "WF001"}, {"wirefence:orders=35~", "WF003"},
				{"wirefence:elsewhere=1~", "WF002"}, {"wirefence:elsewhere=1,orders=34~", ""}, {"wirefence:%6frders=34~x~y", ""}, {"wirefence:orders=34@redis~", ""},
				{"nightly wirefence:orders=34~", "WF002"}, {"Wirefence:orders=34~", "WF002"}, {"wirefence", "WF002"}, // no fence
				{"wirefence:orders=34", "WF004"}, {"wirefence:" + strings.Repeat("a", 50) + "=34,orders=34~", "WF004"}, // PostgreSQL cuts it
				{"wirefence:Orders=34~", "WF004"}, {"wirefence:~", "WF004"}, {"wirefence:orders~", "WF004"}, {"wirefence:34~", "WF004"},
			} {
				named(c.name, write, c.state)
			}
			named("wirefence:report:a:1=34~", "UPDATE reports SET body = 'x' WHERE id = 1", "")
			named("wirefence:report:a:1=33~", "UPDATE reports SET body = 'x' WHERE id = 1", "WF001")
			named("wirefence:report:a:1=34~", "UPDATE reports SET body = 'x' WHERE id = 101", "WF002")
		}
		mustExec(t, app, "RESET default_transaction_isolation")

		named(stale, "SELECT wirefence.check()", "WF001")
		mustExec(t, app, "SET wirefence.token = 'orders=34'") // comes first
		named(stale, write, "")
		mustExec(t, app, "SET wirefence.token = 'orders=33'")
		named(current, write, "WF001")
		mustExec(t, app, "RESET wirefence.token")
		named(current, write, "")
		mustExec(t, app, "BEGIN; SET LOCAL application_name = '"+stale+"'; ROLLBACK; "+write)

		mustExec(t, issuer, "SELECT wirefence.set_carry_name(false, 'the pooler was changed')")
		named(current, write, "WF002")
		if got := value[string](t, issuer, "SELECT string_agg(settings::text, ' ' ORDER BY id) FROM wirefence.resource_changes WHERE resource_id IS NULL"); got != `{"carry_name": [false, true]} {"carry_name": [true, false]}` {
			t.Errorf("recorded %s", got)
		}
	})
}

// A row's claim, with guards that wait for its transition tables, and a hold.
func TestAClaimAndAHoldByName(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		mustExec(t, admin, `CREATE TABLE jobs (id int PRIMARY KEY, claim bigint NOT NULL, done boolean NOT NULL DEFAULT false);
			CREATE TABLE results (job_id int NOT NULL, n int); INSERT INTO jobs VALUES (17, 5);
			SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'NOT done'), wirefence.protect('results', 'job({job_id})'),
			       wirefence.set_carry_name(true, 'why'), wirefence.seal('orders', 34)`)
		for _, c := range []struct{ name, state string }{{"wirefence:job(17)=5~", ""}, {"wirefence:job(17)=4~", "WF001"}, {"wirefence:job(17)=5", "WF004"}, {"psql", "WF002"}} {
			mustExec(t, admin, "SELECT set_config('application_name', $1, false)", c.name)
			wantCode(t, exec(admin, "INSERT INTO results VALUES (17, 1)"), c.state)
		}
		for name, want := range map[string]string{"wirefence:orders=34~": "held ", "wirefence:job(17)=5~": "once", "psql": "none"} {
			mustExec(t, admin, "SELECT set_config('application_name', $1, false)", name)
			if got := value[string](t, admin, "SELECT wirefence.proxy_hold(7, NULL, NULL, 'nothing', false, 'exchange')"); !strings.HasPrefix(got, want) {
				t.Errorf("%s is %q", name, got)
			}
			mustExec(t, admin, "SELECT wirefence.proxy_unhold(7, NULL)")
		}
		wantCode(t, exec(admin, "SET application_name = 'wirefence:orders=34'; SELECT wirefence.proxy_hold(7, NULL, NULL, 'nothing', false, 'exchange')"), "WF004")
	})
}
