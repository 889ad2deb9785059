package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// uninstall runs the command with an answer to its question.
func uninstall(t *testing.T, url, answer string, args ...string) result {
	t.Helper()
	cmd := command(t.Context(), nil, append([]string{"uninstall", "--owner-url", url}, args...)...)
	cmd.Stdin = strings.NewReader(answer)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// Who may grant and drop a role changed in PostgreSQL 16.
func TestUninstall(t *testing.T) {
	stack.NeedsMore(t, "6 s of CPU")
	t.Parallel()
	for _, major := range stack.Versions() {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			t.Parallel()
			testUninstall(t, major)
		})
	}
}

// The roles belong to a server, so this test has one to itself.
func testUninstall(t *testing.T, major int) {
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: major})).EndWith(t)
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE one", "CREATE DATABASE two", "CREATE DATABASE parts", "CREATE ROLE dba LOGIN CREATEROLE",
		"GRANT CREATE ON DATABASE one, two TO dba", "GRANT pg_signal_backend, pg_read_all_stats TO dba WITH ADMIN OPTION", "CREATE ROLE app LOGIN")
	one, two, parts := pg.URL("one"), pg.URLFor("dba", "two"), pg.URL("parts")
	const nothing, roles = "There is nothing of Wirefence here.", "wirefence_bypass, wirefence_issuer, wirefence_owner"
	uninstall(t, one, "").expect(t, 0).says(t, nothing)

	for _, url := range []string{two, one} {
		wirefence(t, nil, "migrate", "--owner-url", url).expect(t, 0)
	}
	stack.Exec(t, one, "CREATE ROLE locker LOGIN IN ROLE wirefence_issuer", "CREATE TABLE orders (item text)", "CREATE TABLE pieces (item text) PARTITION BY LIST (item)",
		"CREATE TABLE pieces_a PARTITION OF pieces FOR VALUES IN ('a')", "SELECT wirefence.protect('orders', 'orders'), wirefence.protect('pieces', 'piece:{item}')",
		"CREATE TABLE jobs (id bigint PRIMARY KEY, taken bigint, state text)", "SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'taken', $$state = 'running'$$)",
		"CREATE TABLE results (job_id bigint NOT NULL)", "SELECT wirefence.protect('results', 'job({job_id})')",
		"CREATE VIEW mine AS SELECT * FROM wirefence.status()", "GRANT INSERT ON orders TO wirefence_bypass")
	refused := func() {
		t.Helper()
		_, err := stack.Connect(t, one).Exec(t.Context(), "INSERT INTO orders VALUES ('a')")
		stack.WantState(t, err, "WF002")
	}
	uninstall(t, one, "n\n").expect(t, exitFailure, "nothing was removed").says(t, "guard of table orders,", "guard of table pieces,", "guard of table pieces_a,", "guard of table results,", "schema wirefence",
		"on public.mine", "keeps the roles "+roles+": they are also in use in two", "members of these roles: dba, locker", "[y/N]")
	uninstall(t, one, "").expect(t, exitUsage, "--yes")
	refused()
	stack.Exec(t, one, "CREATE TABLE kept (item text)", "ALTER TABLE kept OWNER TO wirefence_bypass")
	uninstall(t, one, "", "--yes").expect(t, exitFailure, "wirefence_bypass owns table kept", "HINT: Give it another owner")
	uninstall(t, two, "", "--yes").expect(t, 0).says(t, "also in use in one")
	refused()
	stack.Exec(t, one, "DROP TABLE kept")
	uninstall(t, one, "yes\n").expect(t, 0).says(t, "the roles "+roles, "Wirefence is removed from database one.")
	stack.Exec(t, one, "INSERT INTO orders VALUES ('a')", "INSERT INTO pieces VALUES ('a')", "INSERT INTO results VALUES (1)", "DROP TABLE jobs", "GRANT INSERT ON orders TO app")
	uninstall(t, one, "").expect(t, 0).says(t, nothing)

	// As a role that is no superuser, with the roles of this database alone.
	wirefence(t, nil, "migrate", "--owner-url", two).expect(t, 0)
	uninstall(t, two, "", "--yes").expect(t, 0).says(t, "the roles "+roles)
	uninstall(t, two, "").says(t, nothing)

	// What a migration or a restore has left in part.
	for what, sql := range map[string][]string{
		"a role":                   {"CREATE ROLE wirefence_issuer"},
		"an empty schema":          {"CREATE SCHEMA wirefence"},
		"a schema without version": {"CREATE ROLE wirefence_owner", "CREATE SCHEMA wirefence AUTHORIZATION wirefence_owner", "CREATE TABLE wirefence.applied_version (version int)"},
	} {
		stack.Exec(t, parts, sql...)
		uninstall(t, parts, "", "--yes").expect(t, 0)
		if r := uninstall(t, parts, ""); !strings.Contains(r.stdout, nothing) {
			t.Errorf("%s is left:\n%s", what, r.stdout)
		}
	}
	wirefence(t, nil, "migrate", "--owner-url", parts).expect(t, 0)

	// A schema of that name that somebody else has, or has put something into.
	stack.Exec(t, parts, "CREATE TABLE wirefence.mine (id serial PRIMARY KEY)")
	stack.Exec(t, one, "CREATE SCHEMA wirefence", "CREATE TABLE wirefence.leases (car text)", "CREATE FUNCTION wirefence.renew(car text) RETURNS int LANGUAGE sql AS 'SELECT 1'")
	for url, objects := range map[string][]string{parts: {"table wirefence.mine"}, one: {"table wirefence.leases", "function wirefence.renew(text)"}} {
		uninstall(t, url, "", "--yes").expect(t, exitFailure, append(objects, "Nothing was changed")...)
	}
	for _, more := range [][]string{nil, {"--dry-run"}} {
		wirefence(t, nil, append([]string{"migrate", "--owner-url", one}, more...)...).expect(t, exitFailure, "table wirefence.leases", "not Wirefence's")
	}
	stack.Exec(t, one, "DROP TABLE wirefence.leases", "DROP FUNCTION wirefence.renew(text)")
	wirefence(t, nil, "migrate", "--owner-url", one).expect(t, exitFailure, "ALTER SCHEMA wirefence OWNER TO wirefence_owner")
	stack.Exec(t, parts, "DROP TABLE wirefence.mine", "REASSIGN OWNED BY wirefence_owner TO postgres") // as after pg_restore --no-owner
	uninstall(t, parts, "", "--yes").expect(t, 0)
}
