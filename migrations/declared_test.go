package migrations_test

import "testing"

// If resources must be declared, an unknown one is refused when it is granted or used,
// and leaves no trace.
func TestOnlyDeclaredResources(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		mustExec(t, app, "SELECT wirefence.check('known=34')")
		for _, c := range []struct{ call, state string }{
			{"set_undeclared('refuse', '')", "22023"}, {"set_undeclared('refuse', NULL)", "22023"},
			{"set_undeclared('never', 'why')", "22023"}, {"set_undeclared(NULL, 'why')", "22023"}, {"set_undeclared('refuse', 'all are declared')", ""},
		} {
			wantCode(t, exec(issuer, "SELECT wirefence."+c.call), c.state)
		}
		wantCode(t, exec(app, "SELECT wirefence.set_undeclared('allow', 'why')"), "42501")
		mustExec(t, issuer, "SELECT wirefence.declare_resource('declared', 'a new service', advance => 'use')")
		for _, c := range []struct{ fence, state string }{
			{"known=34", ""}, {"known=35", ""}, {"declared=1", ""}, {"other=1", "WF008"}, {"known=35,other=1", "WF008"},
		} {
			wantCode(t, exec(app, "SELECT wirefence.check($1)", c.fence), c.state)
			if got := value[*string](t, app, "SELECT wirefence.check($1, NULL, false, true)", c.fence); c.state == "WF008" && (got == nil || (*got)[:5] != c.state) {
				t.Errorf("observed %v", got)
			}
		}
		for begin, state := range map[string]string{"BEGIN ISOLATION LEVEL SERIALIZABLE": "WF008", "BEGIN READ ONLY": "WF008"} {
			mustExec(t, app, begin)
			wantCode(t, exec(app, "SELECT wirefence.check('other=1')"), state)
			mustExec(t, app, "ROLLBACK")
		}
		wantCode(t, exec(issuer, "SELECT wirefence.seal('other', 1, 'worker-b')"), "WF008")
		wantCode(t, exec(issuer, "SELECT wirefence.acquire('other', 'worker-b', '1 min')"), "WF008")
		mustExec(t, issuer, "SELECT wirefence.acquire('declared', 'worker-b', '1 min')")
		if n := value[int](t, issuer, "SELECT count(*) FROM wirefence.resource_locks AS l FULL JOIN wirefence.leases USING (resource_id) WHERE resource_id = 'other'"); n > 0 {
			t.Error("it left a trace")
		}
		mustExec(t, issuer, "SELECT wirefence.set_undeclared('allow', 'not all, after all')")
		mustExec(t, app, "SELECT wirefence.check('other=1')")
		if got := value[string](t, issuer, "SELECT string_agg(settings::text, ' ' ORDER BY id) FROM wirefence.resource_changes WHERE resource_id IS NULL"); got != `{"undeclared": ["allow", "refuse"]} {"undeclared": ["refuse", "allow"]}` {
			t.Errorf("recorded %s", got)
		}
	})
}
