package main

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// Functions of PostgreSQL's are replaced in the database's own catalog, so that it
// behaves as another engine would. Only functions in SQL can replace them: those are inlined,
// while others are called as they were.
func TestDoctorOfOtherEngines(t *testing.T) {
	t.Parallel()
	const (
		asOwner = "SET allow_system_table_mods = on"
		untold  = "CREATE OR REPLACE FUNCTION pg_catalog.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS 'SELECT (1/0)::text'"
		unasked = "CREATE OR REPLACE FUNCTION wirefence.identity() RETURNS text LANGUAGE sql RETURN 'unknown'"
		trusted = "SELECT wirefence.set_failover('trust', 'a test')"
	)
	for _, c := range []struct {
		name         string
		made         []string
		status       int
		check, grade string
		says, remedy string
	}{
		{"locks that do nothing", []string{asOwner, "CREATE OR REPLACE FUNCTION pg_catalog.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'"},
			3, "engine.locks", "problem", "a transaction is granted an advisory lock exclusively while another session holds it", "docs/reference/engines.md"},
		{"no timeline", []string{asOwner, "SELECT wirefence.seal('orders', 1)", untold},
			3, "engine.timeline", "problem", "the server doesn't tell its timeline: division by zero", "wirefence migrate --failover trust"},
		{"no timeline, and nobody asks", []string{asOwner, unasked, untold},
			3, "engine.timeline", "problem", "failover is reacquire, but the server doesn't tell its timeline", "wirefence resource set --failover trust"},
		{"no timeline, and storage that is trusted", []string{asOwner, trusted, unasked, untold},
			0, "engine.timeline", "note", "the server doesn't tell its timeline", ""},
		{"nobody asks for the timeline", []string{unasked},
			3, "engine.timeline", "problem", "the schema doesn't ask which server this is", "CREATE OR REPLACE FUNCTION wirefence.identity()"},
		{"nobody asks, and storage that is trusted", []string{trusted, unasked},
			0, "engine.timeline", "note", "the schema was made where none did", "CREATE OR REPLACE FUNCTION wirefence.identity()"},
		{"no right to ask", []string{"REVOKE EXECUTE ON FUNCTION pg_catalog.pg_control_system() FROM PUBLIC"},
			1, "engine.timeline", "unchecked", "permission denied for function pg_control_system", "TO wirefence_owner, wirefence_issuer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			p.exec(t, c.made...)
			r := examine(t, p.settings()).finds(t, c.check, c.grade, c.says, c.remedy)
			if r.status != c.status {
				t.Errorf("exit status %d, not %d:\n%s", r.status, c.status, r.text)
			}
			if c.grade == "note" {
				r.ends(t, c.status)
			}
		})
	}
}

// The doctor's remedy works.
func TestDoctorHasTheSchemaAskForItsServer(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.exec(t, "SELECT wirefence.seal('orders', 1)", "CREATE OR REPLACE FUNCTION wirefence.identity() RETURNS text LANGUAGE sql RETURN 'unknown'")
	for _, c := range examine(t, p.settings()).Checks {
		if c.Check == "engine.timeline" {
			p.exec(t, c.Findings[0].Remedy...)
		}
	}
	examine(t, p.settings()).finds(t, "engine.timeline", "ok", "the server tells its timeline", "").ends(t, 0)
}

// A server whose files are damaged isn't taken for another engine.
func TestMigratingAServerThatFails(t *testing.T) {
	t.Parallel()
	pg := healthyServer(t)
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE damaged TEMPLATE template0")
	stack.Exec(t, pg.URL("damaged"), "SET allow_system_table_mods = on", "UPDATE pg_proc SET probin = '$libdir/none' WHERE proname LIKE 'plpgsql%'")
	got := wirefence(t, []string{"WIREFENCE_DATABASE_URL=" + pg.URL("damaged")}, "migrate").expect(t, exitFailure, "the server itself fails", "58P01")
	if strings.Contains(got.stderr, "can't enforce fences") {
		t.Errorf("the engine is blamed: %s", got.stderr)
	}
}

// Migrating a server that isn't fit says what is missing and what to do.
func TestMigratingWhatIsNotFit(t *testing.T) {
	t.Parallel()
	pg := healthyServer(t)
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE untold TEMPLATE template0")
	stack.Exec(t, pg.URL("untold"), "SET allow_system_table_mods = on", "ALTER FUNCTION pg_catalog.pg_walfile_name(pg_lsn) RENAME TO none")
	url := []string{"WIREFENCE_DATABASE_URL=" + pg.URL("untold")}
	wirefence(t, url, "migrate").expect(t, exitFailure, "this server can't enforce fences: the server doesn't tell its timeline", "wirefence migrate --failover trust")
	wirefence(t, url, "migrate", "--dry-run").expect(t, exitFailure, "doesn't tell its timeline")
	wirefence(t, url, "migrate", "--failover=hope").expect(t, exitUsage, `--failover is "hope": reacquire or trust`)
	wirefence(t, url, "migrate", "--failover=trust").expect(t, 0)
	wirefence(t, url, "resource", "set", "--failover=reacquire", "--reason=why").expect(t, exitFailure, "needs a server that reports its timeline", "HINT: Run wirefence doctor and see its finding engine.timeline.")
	wirefence(t, url, "migrate", "--failover=reacquire").expect(t, 0).says(t, "failover stays trust")
}
