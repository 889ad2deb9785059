package migrations_test

import (
	"strings"
	"testing"
	"time"
)

func TestDeclareAndSet(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		for _, c := range []struct{ call, state string }{
			{"declare_resource('r', 'new service', source => 'etcd', reuse => 'once', preempt_after => '10 s')", ""},
			{"declare_resource('r', 'again', source => 'etcd')", ""},
			{"declare_resource('r', 'again', source => 'etcd', reuse => 'once', preempt_after => '10 s')", ""},
			{"declare_resource('r', 'otherwise', source => 'zk')", "42710"},
			{"declare_resource('r', 'otherwise', preempt_after => 'never')", "42710"},
			{"declare_resource('', 'why')", "22023"},
			{"declare_resource(repeat('x', 256), 'why')", "22023"},
			{"declare_resource(NULL, 'why')", "22023"},
			{"declare_resource('s', repeat('x', 1001))", "22023"},
			{"declare_resource('s', 'why', source => 'Etcd')", "WF004"},
			{"declare_resource('s', 'why', source => '')", "WF004"},
			{"declare_resource('s', 'why', preempt_after => 'soon')", "22007"},
			{"declare_resource('s', 'why', must_name_source => true)", "22023"},
			{"set_resource('r', '', source => 'etcd')", "22023"},
			{"set_resource('r', 'back to normal', reuse => 'allow', preempt_after => 'never', must_name_source => true)", ""},
		} {
			wantCode(t, exec(issuer, "SELECT wirefence."+c.call), c.state)
		}
		got := column[string](t, issuer, "SELECT concat_ws(' ', resource_id, changed_by, reason, settings) FROM wirefence.resource_changes ORDER BY id")
		want := []string{
			`r issuer new service {"reuse": [null, "once"], "source": [null, "etcd"], "preempt_after": [null, "00:00:10"]}`,
			`r issuer back to normal {"reuse": ["once", "allow"], "preempt_after": ["00:00:10", null], "must_name_source": [false, true]}`,
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("recorded %q", got)
		}
		wantCode(t, exec(issuer, "SELECT wirefence.check('r=1@etcd')"), "WF003") // only a seal advances what is declared
		mustExec(t, issuer, "SELECT wirefence.seal('r', 1, 'w', 'etcd')")
		wantCode(t, exec(issuer, "SELECT wirefence.check('r=1')"), "WF003")
		mustExec(t, issuer, "SELECT wirefence.check('r=1@etcd')")
	})
}

// A setting of advance by an operator outlives the first seal, too.
func TestADeclaredAdvanceOutlivesTheFirstSeal(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		mustExec(t, issuer, "SELECT wirefence.declare_resource('said', 'why', advance => 'use'), wirefence.declare_resource('unsaid', 'why')")
		mustExec(t, issuer, "SELECT wirefence.declare_resource('granted', 'why', advance => 'grant')")
		wantCode(t, exec(issuer, "SELECT wirefence.check('granted=1')"), "WF003")
		for resource, state := range map[string]string{"said": "", "unsaid": "WF003", "granted": "WF003"} {
			db.seal(t, resource, 7)
			wantCode(t, exec(issuer, "SELECT wirefence.check($1)", resource+"=8"), state)
		}
	})
}

// Another source locks the present holder out, with its open transactions and its lease,
// and its tokens continue from the last one.
func TestAnotherSourceLocksTheHolderOut(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		grant, _ := win(t, issuer, "orders", "worker-a", time.Hour)
		zombie := db.zombie(t, "orders=1")
		// To name the source that it has is no change.
		mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'why', source => 'postgres', preempt_after => 'never')")
		if !value[bool](t, issuer, renewSQL, "orders", grant) {
			t.Error("the holder was locked out")
		}
		settings := value[string](t, issuer, "SELECT wirefence.set_resource('orders', 'moved', source => 'etcd')::text")
		if settings != `{"source": ["postgres", "etcd"], "last_token": [1, 2]}` {
			t.Errorf("set %s", settings)
		}
		if zombie() == nil {
			t.Error("the holder committed")
		}
		if value[bool](t, issuer, renewSQL, "orders", grant) {
			t.Error("the lease is still held")
		}
		for _, c := range []struct{ sql, state string }{
			{"SELECT wirefence.check('orders=1')", "WF001"},
			{"SELECT wirefence.check('orders=1@postgres')", "WF003"},
			{"SELECT wirefence.acquire('orders', 'worker-b', '1 min')", "WF003"},
			{"SELECT wirefence.seal('orders', 3, 'worker-b', 'etcd')", ""},
			{"SELECT wirefence.check('orders=3@etcd')", ""},
			{"SELECT wirefence.check('orders=3')", ""},
		} {
			wantCode(t, exec(issuer, c.sql), c.state)
		}
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 9223372036854775807, 'w')")
		wantCode(t, exec(issuer, "SELECT wirefence.set_resource('orders', 'moved', source => 'zk')"), "22003")
	})
}

// A source with lower tokens needs a lower last token. Earlier tokens without a source
// must not be accepted again.
func TestALowerLastToken(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		mustExec(t, issuer, "SELECT wirefence.check('orders=3400@etcd')")
		zombie := db.zombie(t, "orders=3400")
		settings := value[string](t, issuer, "SELECT wirefence.set_resource('orders', 'moved', source => 'k8s', last_token => 0)::text")
		if settings != `{"source": ["etcd", "k8s"], "last_token": [3400, 0], "must_name_source": [false, true]}` {
			t.Errorf("set %s", settings)
		}
		if zombie() == nil {
			t.Error("the holder committed")
		}
		for _, c := range []struct{ fence, state string }{
			{"orders=3400", "WF003"}, {"orders=3400@etcd", "WF003"}, {"orders=5", "WF003"}, {"orders=5@k8s", ""}, {"orders=4@k8s", "WF001"},
		} {
			wantCode(t, exec(issuer, "SELECT wirefence.check($1)", c.fence), c.state)
		}
		mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'counter was lost, all holders are stopped', last_token => 1, must_name_source => false)")
		mustExec(t, issuer, "SELECT wirefence.check('orders=2')")
		// Without a known source there is nothing that a token could name.
		mustExec(t, issuer, "SELECT wirefence.check('plain=34')")
		wantCode(t, exec(issuer, "SELECT wirefence.set_resource('plain', 'why', last_token => 1)"), "22023")
		mustExec(t, issuer, "SELECT wirefence.set_resource('plain', 'why', last_token => 100)")
		wantCode(t, exec(issuer, "SELECT wirefence.check('plain=34')"), "WF001")
		mustExec(t, issuer, "SELECT wirefence.check('plain=101')")
	})
}

// Other settings wait for no writer and terminate none.
func TestAPolicyIsSetBesideWriters(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		db.seal(t, "orders", 34)
		writer := db.zombie(t, "orders=34")
		mustExec(t, issuer, "SET statement_timeout = '20 s'")
		mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'why', source => 'etcd', advance => 'use', preempt_after => '1 s')")
		wantCode(t, writer(), "")
		mustExec(t, issuer, "SELECT wirefence.check('orders=35@etcd')")
	})
}

// An open advance has its row locked. A change that needs the row gives up before it blocks others.
func TestAChangeWaitsForNoAdvance(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		mustExec(t, app, "SELECT wirefence.check('orders=1')")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('orders=2')")
		mustExec(t, issuer, "SET statement_timeout = '20 s'")
		for _, change := range []string{"set_failover('trust', 'why')", "set_resource('orders', 'why', reuse => 'once')", "declare_resource('orders', 'why')"} {
			wantCode(t, exec(issuer, "SELECT wirefence."+change), "55P03")
		}
		mustExec(t, app, "COMMIT")
		mustExec(t, issuer, "SELECT wirefence.set_failover('trust', 'why')")
	})
}

// The source changes while the first user of the old one is active.
func TestSetResourceBesideAFirstUse(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		mustExec(t, app, "SELECT wirefence.check('orders=34')")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('orders=35@etcd')")
		changing := db.start(t, issuer, "SELECT wirefence.set_resource('orders', 'why', source => 'zk')")
		mustExec(t, app, "COMMIT")
		wantCode(t, <-changing, "40001")
		if got := db.source(t, "orders"); got != "etcd" {
			t.Errorf("the source is %q", got)
		}
	})
}

// Operators share a role: application_name identifies the operator.
func TestOperatorsAreTold(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 33, 'a/1')")
		mustExec(t, issuer, "BEGIN; SET LOCAL application_name = 'wirefence-api/alice'")
		mustExec(t, issuer, "SELECT wirefence.declare_resource('jobs', 'a new service')")
		mustExec(t, issuer, "SELECT set_config('wirefence.reason', 'it is stuck', true), wirefence.revoke('orders')")
		mustExec(t, issuer, "COMMIT")
		mustExec(t, issuer, "SET application_name = ''; SELECT wirefence.revoke('orders')")
		if got := value[string](t, issuer, "SELECT string_agg(concat_ws(' ', changed_by, application, reason), '; ') FROM wirefence.resource_changes"); got != "issuer wirefence-api/alice a new service" {
			t.Errorf("the change is by %q", got)
		}
		got := told(t, issuer, "application, reason", "'orders', kinds => '{revocation}'")
		if len(got) != 2 || got[0] != "wirefence-api/alice it is stuck" || got[1] != " by an operator" {
			t.Errorf("the history has %q", got)
		}
	})
}

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
