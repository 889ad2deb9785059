package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// healthyServer is a server as an operator should run it. The doctor would find problems on
// the other tests' server, which gives up durability for speed.
func healthyServer(t *testing.T) *servers.Postgres {
	t.Helper()
	return share(t, &shared.healthy, func(context.Context) (*servers.Postgres, error) { return startHealthy(t), nil })
}

func startHealthy(t *testing.T) *servers.Postgres {
	t.Helper()
	pg, err := servers.StartPostgres(context.Background(), servers.PostgresConfig{Fsync: true})
	if err != nil {
		t.Fatal(err)
	}
	stack.Exec(t, pg.URL("postgres"), "CREATE ROLE wirefence_issuer NOLOGIN", "CREATE ROLE issuer LOGIN IN ROLE wirefence_issuer", "CREATE ROLE app LOGIN")
	return pg
}

// patient is a database to be looked at.
type patient struct {
	*servers.Postgres
	name string
}

func newPatient(t *testing.T) patient {
	t.Helper()
	stack.NeedsMore(t, "half a minute of CPU, with all that doctor examines")
	pg := healthyServer(t)
	return patient{pg, stack.Database(t, pg)}
}

func (p patient) settings(more ...string) []string {
	return append([]string{"WIREFENCE_DATABASE_URL=" + p.URLFor("issuer", p.name)}, more...)
}

// exec changes the database as its superuser.
func (p patient) exec(t *testing.T, statements ...string) {
	t.Helper()
	stack.Exec(t, p.URL(p.name), statements...)
}

// report is what `wirefence doctor -o json` prints.
type report struct {
	status int
	text   string
	Grade  string
	Counts map[string]int
	Checks []struct {
		Check, Grade string
		Milliseconds float64
		Findings     []struct {
			Grade, Says, Means string
			Remedy             []string
		}
	}
}

func examine(t *testing.T, settings []string, args ...string) report {
	t.Helper()
	got := wirefence(t, settings, append([]string{"doctor", "-o", "json"}, args...)...)
	r := report{status: got.status, text: got.stdout}
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatalf("status %d, %v:\n%s%s", got.status, err, got.stdout, got.stderr)
	}
	return r
}

// finds fails the test unless a check has a finding of a grade with a text, and a
// remedy with another.
func (r report) finds(t *testing.T, check, grade, says, remedy string) report {
	t.Helper()
	for _, c := range r.Checks {
		if c.Check != check {
			continue
		}
		for _, f := range c.Findings {
			if f.Grade == grade && strings.Contains(f.Says, says) && strings.Contains(strings.Join(f.Remedy, "\n"), remedy) {
				if f.Means == "" && (grade == "warning" || grade == "problem") {
					t.Errorf("%s doesn't say what %q means", check, f.Says)
				}
				return r
			}
		}
	}
	t.Errorf("%s has no %s that says %q with the remedy %q:\n%s", check, grade, says, remedy, r.text)
	return r
}

// ends fails the test unless the exit status is one, and no more checks than those
// named have a grade worse than a note.
func (r report) ends(t *testing.T, status int, checks ...string) {
	t.Helper()
	if r.status != status {
		t.Errorf("exit status %d, not %d:\n%s", r.status, status, r.text)
	}
	for _, c := range r.Checks {
		if bad := c.Grade != "ok" && c.Grade != "note"; bad != slices.Contains(checks, c.Check) {
			t.Errorf("%s is %s:\n%+v", c.Check, c.Grade, c.Findings)
		}
	}
}

func TestDoctorOfAHealthyDatabase(t *testing.T) {
	t.Parallel()
	pg := healthyServer(t)
	p := patient{pg, stack.Database(t, pg)}
	p.exec(t, "CREATE TABLE orders (id int)", "SELECT wirefence.seal('orders', 34, 'worker-B')", "SELECT wirefence.protect('orders', 'orders')",
		"CREATE TABLE jobs (id bigint PRIMARY KEY, claim bigint)", "SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'claim > 0')")
	r := wirefence(t, p.settings(), "doctor").expect(t, 0)
	r.says(t, "classes of rows: 1, and all can judge", "ok         database.reachable", "schema is at version", "guarded tables: 1, and all guards are in place", "All is well")
	for line := range strings.Lines(r.stdout) {
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(line, "ok ") && !strings.HasPrefix(line, "All is well") {
			t.Errorf("besides: %s", text)
		}
	}
	wirefence(t, p.settings(), "doctor", "--strict").expect(t, 0)
	j := examine(t, p.settings())
	j.ends(t, 0)
	if j.Grade != "ok" || j.Counts["ok"] != len(j.Checks) || len(j.Checks) < 15 {
		t.Errorf("got %+v", j)
	}
}

// Every drift is made, and found by its check alone.
func TestDoctorFindsDrift(t *testing.T) {
	stack.NeedsMore(t, "11 s of CPU")
	t.Parallel()
	guard := []string{"CREATE TABLE orders (id int)", "CREATE TABLE reports (tenant text NOT NULL, id int NOT NULL)",
		"SELECT wirefence.protect('orders', 'orders')", "SELECT wirefence.protect('reports', 'report:{tenant}:{id}')"}
	rows := []string{"CREATE TABLE reports (id bigint)", "CREATE TABLE jobs (id bigint PRIMARY KEY, claim bigint)",
		"SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'claim > 0')"}
	for _, c := range []struct {
		name   string
		made   []string
		status int
		check  string
		grade  string
		says   string
		remedy string
	}{
		{"a dropped trigger", append(guard, "DROP TRIGGER wirefence_guard ON orders"),
			3, "guards.tables", "problem", "public.orders, for orders: a trigger of its guard is missing", "wirefence protect public.orders --resource orders"},
		{"a disabled trigger", append(guard, "ALTER TABLE reports DISABLE TRIGGER wirefence_guard_update"),
			3, "guards.tables", "problem", "a trigger of its guard is disabled", "wirefence protect public.reports --resource 'report:{tenant}:{id}'"},
		{"a renamed column", append(guard, "ALTER TABLE reports RENAME COLUMN tenant TO customer"),
			0, "guards.tables", "warning", "a column of the template was renamed", "wirefence unprotect public.reports"},
		{"a later partition", append(guard, "CREATE TABLE log (at int) PARTITION BY RANGE (at)", "SELECT wirefence.protect('log', 'log')",
			"CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (1) TO (2)"),
			3, "guards.tables", "problem", "a later partition", "wirefence protect public.log --resource log"},
		{"a dropped table", append(guard, "DROP TABLE orders"),
			0, "guards.tables", "warning", "the table has gone", "wirefence protect"},
		{"EXECUTE revoked", []string{"REVOKE EXECUTE ON FUNCTION wirefence.check(text, text, boolean, boolean) FROM PUBLIC"},
			3, "schema.objects", "problem", "PUBLIC lacks EXECUTE", "GRANT EXECUTE ON FUNCTION wirefence.check(text, text, boolean, boolean) TO PUBLIC"},
		{"INSERT granted", []string{"GRANT INSERT ON wirefence.resource_locks TO PUBLIC"},
			3, "schema.objects", "problem", "PUBLIC has INSERT", "REVOKE INSERT ON TABLE wirefence.resource_locks FROM PUBLIC"},
		{"SELECT granted", []string{"GRANT SELECT ON wirefence.resource_locks TO app"},
			0, "schema.objects", "warning", "app has SELECT", "REVOKE SELECT ON TABLE wirefence.resource_locks FROM app"},
		{"an altered function", []string{"CREATE OR REPLACE FUNCTION wirefence.judge(resources text[], tokens bigint[], sources text[], caller text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS 'BEGIN END'"},
			3, "schema.objects", "problem", "wirefence.judge(text[], bigint[], text[], text): its body was changed", "CREATE OR REPLACE FUNCTION wirefence.judge"},
		{"not SECURITY DEFINER", []string{"ALTER FUNCTION wirefence.read_rows(text) SECURITY INVOKER"},
			3, "schema.objects", "problem", "not SECURITY DEFINER", "SECURITY DEFINER"},
		{"no search_path", []string{"ALTER FUNCTION wirefence.seal(text, bigint, text, text) RESET search_path"},
			3, "schema.objects", "problem", "its settings are none", "SET search_path = pg_catalog, pg_temp"},
		{"a read-only database", []string{"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$"},
			3, "database.primary", "problem", "default_transaction_read_only is on, by database", "RESET default_transaction_read_only"},
		{"synchronous_commit off", []string{"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$"},
			0, "server.durability", "warning", "synchronous_commit is off, by database", "RESET synchronous_commit"},
		{"replica role", []string{"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET session_replication_role = replica', current_database()); END $$"},
			3, "guards.replica-role", "problem", "session_replication_role is replica for database", "RESET session_replication_role"},
		{"a short statement_timeout", []string{"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = ''2s''', current_database()); END $$"},
			0, "server.timeouts", "warning", "statement_timeout", "SET statement_timeout = 0"},
		{"a guard in shadow mode", append(guard, "SELECT wirefence.unprotect('orders'), wirefence.protect('orders', 'orders', true)"),
			0, "guards.tables", "warning", "guards in shadow mode: public.orders", "wirefence protect public.orders --resource orders"},
		{"a class of rows whose table was dropped", append(rows, "DROP TABLE jobs"),
			0, "rows.classes", "warning", "job, of public.jobs: the table has gone", "wirefence rows drop job, if not"},
		{"a class of rows with a renamed column", append(rows, "ALTER TABLE jobs RENAME claim TO claimed"),
			0, "rows.classes", "warning", "job, of public.jobs: a column that the class uses was altered",
			`wirefence rows declare job --table public.jobs --key id --claim claim --while '(claim > 0)', with the present names`},
		{"a class of rows in shadow mode", append(rows, "SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'claim > 0', true)"),
			0, "rows.classes", "warning", "job, of public.jobs: it is in shadow mode", "wirefence rows declare job --table public.jobs --key id --claim claim --while '(claim > 0)', when"},
		{"a guard of rows without a class", append(rows, "SELECT wirefence.protect('reports', 'job({id})')", "SELECT wirefence.drop_rows('job')"),
			0, "guards.tables", "warning", "public.reports, for job({id}): the class of its rows is not declared", "wirefence rows declare job --table TABLE"},
		{"a resource in shadow mode", []string{"SELECT wirefence.declare_resource('orders', 'why', mode => 'shadow')"},
			0, "resources.policies", "warning", "orders: it is in shadow mode", "--resource-mode enforce"},
		{"a resource that waits for ever", []string{"SELECT wirefence.declare_resource('orders', 'why', preempt_after => 'never')"},
			0, "resources.policies", "warning", "orders: preempt_after is never", "wirefence resource set orders --preempt-after 5s"},
		{"sealed, and open to any token", []string{"SELECT wirefence.declare_resource('orders', 'why', advance => 'use')", "SELECT wirefence.seal('orders', 1, 'worker-A')"},
			0, "resources.policies", "warning", "counts from its first use", "--advance grant"},
		{"a takeover that outlasts the lease", []string{"SELECT wirefence.declare_resource('orders', 'why', preempt_after => '12s')", "SELECT wirefence.declare_resource('in time', 'why', preempt_after => '11.9s')",
			"SELECT wirefence.declare_resource('foreign', 'why', preempt_after => '1h', advance => 'use')"},
			0, "resources.takeovers", "warning", "orders: preempt_after is 12s, and with WIREFENCE_TTL=15s a grant must be sealed within 12s", "WIREFENCE_TTL=17s or longer"},
		{"no tokens left", []string{"SELECT wirefence.seal('orders', 9223372036854775000)"},
			3, "resources.tokens", "problem", "orders: its last token is 9223372036854775000", "wirefence resource set orders --last-token N"},
		{"a token that nobody counted", []string{"SELECT wirefence.seal('orders', 5000000000000000000)"},
			0, "resources.tokens", "warning", "its last token is 5000000000000000000", "--last-token N"},
		{"an expired lease", []string{"SELECT wirefence.acquire('orders', 'worker-A', '1 microsecond')"},
			0, "resources.leases", "note", "have expired and were not acquired again: 1", ""},
		{"many resources that nobody granted", []string{"SELECT wirefence.check('invoice:' || n || '=1') FROM generate_series(1, 1000) AS n"},
			0, "resources.unsealed", "note", "no grant was sealed: 1000 of 1000", "wirefence resource forget --unused-for 30d"},
		{"a refusal", []string{"INSERT INTO wirefence.history (kind, resource, count) VALUES ('refusal', 'orders', 3), ('shadow', 'orders', 2)"},
			0, "history.refusals", "note", "orders: refused in the last hour: 3, passed in shadow mode: 2", "wirefence history --since 1h"},
		{"a refusal without a resource", []string{"INSERT INTO wirefence.history (kind) VALUES ('refusal')"},
			0, "history.refusals", "note", "without a resource: refused in the last hour: 1", "wirefence history --since 1h"},
		{"a refusal that no proxy saw", []string{"SELECT nextval('wirefence.refusals')"},
			0, "history.complete", "note", "1 of the 1 refusals that the database has ever raised are not in the history", ""},
		{"a handoff that was not written", []string{"SELECT nextval('wirefence.history_dropped')"},
			0, "history.complete", "note", "1 handoffs, ended transactions or notes of shadow mode, ever, are not in the history", ""},
		{"more history than it is to keep", []string{"SELECT wirefence.set_history(max_rows => 100)", "INSERT INTO wirefence.history (kind) SELECT 'handoff' FROM generate_series(1, 811)"},
			0, "history.complete", "warning", "the history has 811 rows, more than the 200", "wirefence.prune_history()"},
		{"handoffs that are not noted", []string{"ALTER TABLE wirefence.resource_locks DISABLE TRIGGER note_handoff"},
			0, "schema.objects", "warning", "its trigger note_handoff is disabled", "ENABLE"},
		{"no history", []string{"ALTER TABLE wirefence.history RENAME TO hist"},
			1, "schema.objects", "warning", "wirefence.history: it is missing", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			p.exec(t, c.made...)
			r := examine(t, p.settings()).finds(t, c.check, c.grade, c.says, c.remedy)
			if c.grade == "note" {
				r.ends(t, c.status)
			} else if c.status == exitFailure {
				r.ends(t, c.status, c.check, "history.refusals", "history.complete")
				return
			} else {
				r.ends(t, c.status, c.check)
			}
		})
	}
}

// The TTL is that of the environment, and of many resources only some are named.
func TestDoctorComparesTakeoversWithTheTTL(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.exec(t, "SELECT wirefence.seal('orders:' || n, 1, 'worker-A') FROM generate_series(10, 21) AS n")
	examine(t, p.settings()).ends(t, 0)
	r := examine(t, p.settings("WIREFENCE_TTL=6s"))
	r.finds(t, "resources.takeovers", "warning", "orders:10: preempt_after is 5s, and with WIREFENCE_TTL=6s a grant must be sealed within 4.8s", "wirefence resource set orders:10 --preempt-after 3s").
		finds(t, "resources.takeovers", "warning", "the same is true of 2 more", "wirefence resource list")
	r.ends(t, 0, "resources.takeovers")
	wirefence(t, p.settings("WIREFENCE_TTL=0s"), "doctor").expect(t, exitUsage, `WIREFENCE_TTL is "0s"`)
}

// A resource in shadow mode that waits for ever is both, and names of resources move
// no cursor.
func TestDoctorTellsAllOfAPolicy(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.exec(t, "SELECT wirefence.declare_resource(E'or\\x1b[2Jders', 'why', mode => 'shadow', preempt_after => 'never')")
	r := examine(t, p.settings())
	r.finds(t, "resources.policies", "warning", "it is in shadow mode", "--resource-mode enforce").finds(t, "resources.policies", "warning", "preempt_after is never", "--preempt-after 5s")
	r.ends(t, 0, "resources.policies")
	text := wirefence(t, p.settings(), "doctor").expect(t, 0).says(t, `or\x1b[2Jders: it is in shadow mode`).stdout
	if strings.Contains(text, "\x1b") {
		t.Errorf("the report has an escape character:\n%q", text)
	}
}

// Settings of a role or a database don't pass through the proxy, which refuses unknown ones
// elsewhere.
func TestDoctorFindsUnknownSettings(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	role := "settings_" + p.name
	p.exec(t, "CREATE ROLE "+role, "ALTER DATABASE "+p.name+" SET wirefence.reason = 'x'", "ALTER ROLE "+role+" IN DATABASE "+p.name+" SET wirefence.token = 'orders=1'")
	defer func() { p.exec(t, "ALTER ROLE "+role+" IN DATABASE "+p.name+" RESET ALL", "DROP ROLE "+role) }()
	examine(t, p.settings()).finds(t, "sessions.settings", "ok", "", "")
	p.exec(t, "ALTER ROLE "+role+" IN DATABASE "+p.name+" SET Wirefence.Tokem = 'orders=1'")
	r := examine(t, p.settings())
	r.finds(t, "sessions.settings", "problem", `unknown setting "wirefence.tokem" for role `+role+" in database "+p.name, "ALTER ROLE "+role+" IN DATABASE "+p.name+" RESET ")
	r.ends(t, 3, "sessions.settings")
}

// What code in the database does to a fence isn't followed, so it is named.
func TestDoctorNamesCode(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	examine(t, p.settings()).finds(t, "sessions.code", "ok", "", "")
	p.exec(t,
		"CREATE FUNCTION take_turn() RETURNS text LANGUAGE sql AS $$ SELECT set_config('Wirefence.Token', 'orders=1', true) $$",
		"CREATE FUNCTION forget_locks() RETURNS void LANGUAGE sql BEGIN ATOMIC SELECT pg_advisory_unlock_all(); END")
	examine(t, p.settings()).
		finds(t, "sessions.code", "note", "take_turn()", "wirefence protect").
		finds(t, "sessions.code", "note", "forget_locks()", "pg_advisory_unlock(key)").
		ends(t, 0)
}

func TestDoctorCountsAllSessions(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.exec(t, "SELECT wirefence.declare_resource('orders', 'slow', preempt_after => '1 h'), wirefence.seal('orders', 34)")
	for range 22 {
		writer := stack.Connect(t, p.URLFor("app", p.name))
		if _, err := writer.Exec(t.Context(), "BEGIN; SELECT wirefence.check('orders=34')"); err != nil {
			t.Fatal(err)
		}
	}
	examine(t, p.settings()).finds(t, "sessions.idle", "ok", "sessions that hold a resource: 22, and none is stuck", "")
	p.exec(t, "SELECT wirefence.set_resource('orders', 'quick', preempt_after => '1 ms')")
	examine(t, p.settings()).finds(t, "sessions.idle", "warning", "and 12 more that are idle for a shorter time", "")
}

func TestDoctorOfAnotherSchemaVersion(t *testing.T) {
	t.Parallel()
	pg := healthyServer(t)
	bare := fmt.Sprintf("bare_%d", pg.Pid())
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE "+bare)
	r := examine(t, patient{pg, bare}.settings()).finds(t, "schema.version", "problem", "no wirefence schema", "wirefence migrate")
	if r.status != 3 {
		t.Errorf("status %d", r.status)
	}
	r.finds(t, "guards.tables", "unchecked", "because of schema.version", "")
	for _, apart := range []int{-1, 1} {
		p := newPatient(t)
		p.exec(t, fmt.Sprintf("UPDATE wirefence.applied_version SET version = version + %d", apart))
		r := examine(t, p.settings()).finds(t, "schema.version", "warning", "one from this binary's", map[bool]string{true: "upgrade this binary", false: "wirefence migrate"}[apart > 0])
		r.finds(t, "schema.objects", "note", "not compared", "")
		r.ends(t, 0, "schema.version")
	}
	for says, version := range map[string]int{"this binary needs version": migrations.Version() - 2, "this binary knows version": migrations.Version() + 2} {
		p := newPatient(t)
		p.exec(t, fmt.Sprintf("UPDATE wirefence.applied_version SET version = %d", version))
		examine(t, p.settings()).finds(t, "schema.version", "problem", says, map[bool]string{true: "upgrade this binary", false: "wirefence migrate"}[version > migrations.Version()])
	}
}

func TestDoctorWithoutADatabase(t *testing.T) {
	t.Parallel()
	r := examine(t, []string{"WIREFENCE_DATABASE_URL=postgres://u:geheim@127.0.0.1:1/x?sslmode=disable"})
	r.finds(t, "database.reachable", "problem", "can't be reached", "WIREFENCE_DATABASE_URL").finds(t, "schema.version", "unchecked", "because of database.reachable", "")
	if r.status != exitProblem || strings.Contains(r.text, "geheim") {
		t.Errorf("status %d:\n%s", r.status, r.text)
	}
	wirefence(t, nil, "doctor").expect(t, exitUsage, "WIREFENCE_DATABASE_URL is not set")
	for _, setting := range []string{"WIREFENCE_DATABASE_URL=postgres://u:geheim@h:port/", "WIREFENCE_TIMEOUT=0s", "WIREFENCE_UPSTREAM=postgres://h:port/", "WIREFENCE_UPSTREAM=geheim", "WIREFENCE_PROXY_URL=geheim",
		"WIREFENCE_LISTEN=nowhere", "WIREFENCE_ADMIN_LISTEN=nowhere", "WIREFENCE_PROXY_URL=postgres://u:geheim@h:port/", "WIREFENCE_REDIS_URL=redis://u:geheim@h:port/"} {
		name, _, _ := strings.Cut(setting, "=")
		r := wirefence(t, []string{"WIREFENCE_DATABASE_URL=postgres://127.0.0.1:1/x", setting}, "doctor").expect(t, exitUsage, name)
		if strings.Contains(r.stderr, "geheim") {
			t.Errorf("the password is shown: %s", r.stderr)
		}
	}
}

// The doctor names the right that its role lacks, and its exit status says that a check
// could not be made.
func TestDoctorWithoutRights(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	r := examine(t, []string{"WIREFENCE_DATABASE_URL=" + p.URLFor("app", p.name)})
	r.finds(t, "roles.issuer", "problem", "app is no member of wirefence_issuer", `GRANT wirefence_issuer TO "app"`)
	r.finds(t, "guards.tables", "unchecked", "permission denied", `GRANT wirefence_issuer TO "app"`)
	r.finds(t, "schema.objects", "ok", "as this binary installs them", "")
	p.exec(t, "CREATE ROLE blind LOGIN IN ROLE wirefence_issuer", "SELECT wirefence.seal('orders', 34)")
	writer := stack.Connect(t, p.URLFor("app", p.name))
	if _, err := writer.Exec(t.Context(), "BEGIN; SELECT wirefence.check('orders=34')"); err != nil {
		t.Fatal(err)
	}
	r = examine(t, []string{"WIREFENCE_DATABASE_URL=" + p.URLFor("blind", p.name)})
	r.finds(t, "sessions.idle", "ok", "sessions that hold a resource: 1, and none is stuck", "")
	r.finds(t, "resources.holders", "note", "orders: token 34", "")
	r.ends(t, 0)
}

func TestDoctorFindsStuckTransactions(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.exec(t, "SELECT wirefence.declare_resource('orders', 'quick', preempt_after => '1 ms'), wirefence.declare_resource('patient', 'slow', preempt_after => '1 h')",
		"SELECT wirefence.declare_resource('prepared', 'slow', preempt_after => '1 h')",
		"SELECT wirefence.seal('orders', 34), wirefence.seal('prepared', 1), wirefence.seal('patient', 1)")
	writer := stack.Connect(t, p.URLFor("app", p.name)+"&application_name=billing")
	if _, err := writer.Exec(t.Context(), "BEGIN; SELECT wirefence.check('orders=34,patient=1')"); err != nil {
		t.Fatal(err)
	}
	preparing := stack.Connect(t, p.URLFor("app", p.name))
	if _, err := preparing.Exec(t.Context(), "BEGIN; SELECT wirefence.check('prepared=1'); PREPARE TRANSACTION 'it''s'"); err != nil {
		t.Fatal(err)
	}
	defer stack.Exec(t, p.URLFor("app", p.name), "ROLLBACK PREPARED 'it''s'")
	examine(t, p.settings()).finds(t, "sessions.prepared", "ok", "", "")
	p.exec(t, "SELECT wirefence.set_resource('prepared', 'quick', preempt_after => '1 ms')")
	r := examine(t, p.settings())
	r.finds(t, "sessions.prepared", "problem", `'it''s' holds resource "prepared"`, "ROLLBACK PREPARED 'it''s'")
	r.finds(t, "sessions.idle", "warning", `of app (billing), is idle for`, fmt.Sprintf("SELECT pg_terminate_backend(%d)", writer.PgConn().PID()))
	if strings.Contains(r.text, `holds resource \"patient\"`) {
		t.Errorf("a session is told of that is not stuck:\n%s", r.text)
	}
	r.ends(t, 3, "sessions.prepared", "sessions.idle", "resources.takeovers")
}

// What replicates into guarded tables is found: subscriptions, and extensions by their names.
func TestDoctorFindsASecondWriterByReplication(t *testing.T) {
	stack.NeedsMore(t, "2 s of CPU")
	t.Parallel()
	pg := startHealthy(t) // the walsenders would count at the shared one
	t.Cleanup(pg.Close)
	publisher, p := patient{pg, stack.Database(t, pg)}, patient{pg, stack.Database(t, pg)}
	p.exec(t, "CREATE TABLE orders (id int)", "CREATE TABLE notes (id int)")
	examine(t, p.settings()).finds(t, "guards.replication", "ok", "nothing is replicated to here", "")
	publisher.exec(t, "CREATE TABLE orders (id int)", "CREATE TABLE notes (id int)")
	for _, table := range []string{"orders", "notes"} {
		name := table + "_" + p.name
		publisher.exec(t, "CREATE PUBLICATION "+table+" FOR TABLE "+table, "SELECT pg_create_logical_replication_slot('"+name+"', 'pgoutput')")
		p.exec(t, fmt.Sprintf("CREATE SUBSCRIPTION %s CONNECTION '%s' PUBLICATION %s WITH (create_slot = false)", name, publisher.URL(publisher.name), table))
	}
	r := wirefence(t, []string{"WIREFENCE_OWNER_URL=" + p.URL(p.name)}, "protect", "orders", "--resource", "orders")
	r.expect(t, 0, "WARNING: guards don't check rows that are replicated into public.orders: subscription orders_"+p.name, "DETAIL: ", "HINT: ")
	found := examine(t, p.settings())
	found.finds(t, "guards.replication", "warning", "the subscription orders_"+p.name+" writes into guarded tables: public.orders", "WIREFENCE_SEAL_URLS")
	found.finds(t, "guards.replication", "note", "the subscription notes_"+p.name+" writes here, into no guarded table", "")
	// Neither Spock nor pglogical is installed here: its row is what the doctor goes by.
	p.exec(t, "SET allow_system_table_mods = on; INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion) SELECT 4711, 'spock', 10, 2200, false, '1'")
	examine(t, p.settings()).finds(t, "guards.replication", "warning", "the extension spock may write into guarded tables", "")
}
