package migrations_test

import (
	"testing"
)

// A read needs no token unless the resource says so; then a former holder's is
// refused, and a takeover waits for it as for a write.
func TestReadsAreCheckedWhereTheResourceSaysSo(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		db.seal(t, "orders", 34)
		db.seal(t, "lines", 34)
		read := func(fence, want string) {
			t.Helper()
			wantCode(t, exec(app, "SELECT wirefence.check_read($1, NULL)", fence), want)
		}
		read("orders=33", "")
		read("nonsense", "")
		mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'reads must be of now', reads => 'check')")
		read("orders=34", "")
		read("orders=33", "WF001")
		read("orders=35", "WF003")
		read("lines=33", "")                // of a resource that lets reads pass
		read("lines=33,orders=34", "WF001") // a fence is checked whole
		read("nonsense", "WF004")
		wantCode(t, exec(app, "SELECT wirefence.check_read(NULL, NULL)"), "") // who carries none may read
		mustExec(t, app, "SET wirefence.token = 'orders=33'")
		wantCode(t, exec(app, "SELECT wirefence.check_read(NULL, NULL)"), "WF001")
		mustExec(t, app, "SET wirefence.token = '33'")
		wantCode(t, exec(app, "SELECT wirefence.check_read(NULL, 'orders')"), "WF001")
		mustExec(t, app, "RESET wirefence.token")
		if got := value[string](t, app, "SELECT wirefence.observe_read('orders=33', NULL)"); got[:5] != "WF001" {
			t.Errorf("observed %s", got)
		}
		if got := value[*string](t, app, "SELECT wirefence.observe_read('lines=33', NULL)"); got != nil {
			t.Errorf("observed %s", *got)
		}

		// A takeover waits for the reader, and for nobody who read before.
		mustExec(t, app, "BEGIN READ ONLY; SELECT wirefence.check_read('orders=34', NULL)")
		taking := db.start(t, issuer, "SELECT wirefence.seal('orders', 35, 'worker-c')")
		mustExec(t, app, "COMMIT")
		wantCode(t, <-taking, "")
		read("orders=34", "WF001")
	})
}

// Where a snapshot or a standby could hide a takeover, a read is not let pass.
func TestReadsThatCanNotBeChecked(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		db.seal(t, "orders", 34)
		mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'reads must be of now', reads => 'check')")
		for begin, want := range map[string]string{
			"BEGIN READ ONLY": "WF001", "BEGIN": "WF001",
			"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY":          "WF006",
			"BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY, DEFERRABLE": "WF006",
			"BEGIN ISOLATION LEVEL REPEATABLE READ":                    "40001",
			"BEGIN ISOLATION LEVEL SERIALIZABLE":                       "40001",
		} {
			token := value[int64](t, issuer, "SELECT last_token FROM wirefence.status() WHERE resource = 'orders'")
			snapshot(t, app, begin)
			if !value[bool](t, issuer, "SELECT wirefence.seal('orders', $1, 'worker-c')", token+1) {
				t.Fatal("not sealed")
			}
			t.Log(begin)
			wantCode(t, exec(app, "SELECT wirefence.check_read('orders=' || $1::bigint, NULL)", token), want)
			mustExec(t, app, "ROLLBACK")
		}
	})
}

// What says to the proxies that reads are checked follows the resources.
func TestReadsAreCheckedIsTold(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer, other := db.as(t, "issuer"), db.as(t, "issuer")
		want := func(told string) {
			t.Helper()
			if got := value[string](t, issuer, "SELECT prosrc FROM pg_proc WHERE oid = 'wirefence.reads_are_checked()'::regprocedure"); got != told {
				t.Errorf("told %q, want %q", got, told)
			}
		}
		want("SELECT false")
		mustExec(t, issuer, "SELECT wirefence.declare_resource('a', 'why', reads => 'check'), wirefence.declare_resource('b', 'why')")
		want("SELECT true")
		mustExec(t, issuer, "SELECT wirefence.set_resource('a', 'why', reads => 'pass')")
		want("SELECT false")
		mustExec(t, issuer, "BEGIN; SELECT wirefence.set_resource('a', 'why', reads => 'check')")
		second := db.start(t, other, "SELECT wirefence.set_resource('b', 'why', reads => 'check')")
		mustExec(t, issuer, "COMMIT")
		wantCode(t, <-second, "")
		want("SELECT true")
		mustExec(t, issuer, "SELECT wirefence.set_resource('a', 'why', reads => 'pass')")
		want("SELECT true")
		mustExec(t, issuer, "SELECT wirefence.set_resource('b', 'why', reads => 'pass')")
		want("SELECT false")

		// Who sees too little, since its snapshot is older, takes nothing back.
		for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
			mustExec(t, other, "SELECT wirefence.set_resource('a', 'why', reads => 'check')")
			snapshot(t, issuer, "BEGIN ISOLATION LEVEL "+level)
			mustExec(t, other, "SELECT wirefence.set_resource('b', 'why', reads => 'check')")
			mustExec(t, issuer, "SELECT wirefence.set_resource('a', 'why', reads => 'pass'); COMMIT")
			want("SELECT true")
			mustExec(t, other, "SELECT wirefence.set_resource('b', 'why', reads => 'pass')")
			want("SELECT false")
		}
	})
}

// Where resources must be declared, one that isn't known is refused, granted or
// used, and leaves no trace.
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
		mustExec(t, issuer, "SELECT wirefence.declare_resource('declared', 'a new service')")
		for _, c := range []struct{ fence, state string }{
			{"known=34", ""}, {"known=35", ""}, {"declared=1", ""}, {"other=1", "WF008"}, {"known=35,other=1", "WF008"},
		} {
			wantCode(t, exec(app, "SELECT wirefence.check($1)", c.fence), c.state)
			if got := value[*string](t, app, "SELECT wirefence.observe($1, NULL, false)", c.fence); c.state == "WF008" && (got == nil || (*got)[:5] != c.state) {
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
