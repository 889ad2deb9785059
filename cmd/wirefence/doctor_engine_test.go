package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
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

// The old primary goes on beside the new one.
func TestDoctorOfTwoPrimaries(t *testing.T) {
	stack.NeedsMore(t, "2 s of CPU")
	t.Parallel()
	pg := startHealthy(t)
	t.Cleanup(pg.Close)
	old := patient{pg, stack.Database(t, pg)}
	standby := stack.Started(old.StartStandby(t.Context())).EndWith(t)
	both := old.among("any", pg.Addr(), standby.Addr())
	examine(t, both).finds(t, "failover.hosts", "ok", "of 2 hosts", "").ends(t, 0)
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	examine(t, both).finds(t, "failover.hosts", "problem", pg.Addr()+" is a primary on timeline 1, left behind by that on timeline 2 at "+standby.Addr(), "end the server at "+pg.Addr()).
		ends(t, exitProblem, "failover.hosts")
	pg.Kill()
	examine(t, old.among("read-write", standby.Addr(), pg.Addr())).finds(t, "failover.hosts", "note", pg.Addr()+" can't be asked", "").ends(t, 0)
}

// among is the database of several hosts.
func (p patient) among(attributes string, hosts ...string) []string {
	return []string{"WIREFENCE_DATABASE_URL=postgres://issuer@" + strings.Join(hosts, ",") + "/" + p.name + "?sslmode=disable&target_session_attrs=" + attributes}
}

// A commit that waits for less than a grant's is told where there are synchronous standbys.
func TestDoctorOfSynchronousStandbys(t *testing.T) {
	stack.NeedsMore(t, "3 s of CPU")
	t.Parallel()
	pg := startHealthy(t)
	t.Cleanup(pg.Close)
	p := patient{pg, stack.Database(t, pg)}
	stack.Started(pg.StartStandby(t.Context())).EndWith(t) // whose application_name is standby
	p.exec(t, "SELECT wirefence.set_failover('trust', 'a test'), wirefence.seal('orders', 1)", "ALTER ROLE app SET synchronous_commit = local")
	examine(t, p.settings()).finds(t, "failover.commits", "ok", "grants wait for the disk", "")
	p.exec(t, "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
	stack.Eventually(t, "the standby is synchronous", func() bool {
		return examine(t, p.settings()).Grade == "note"
	})
	examine(t, p.settings()).finds(t, "failover.commits", "note", "synchronous_commit is local for role app", "ALTER ROLE app RESET synchronous_commit").
		finds(t, "failover.lost", "ok", "", "").ends(t, 0)
	p.exec(t, "SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (another, standby)'", "SELECT pg_reload_conf()")
	stack.Started(pg.StartStandby(t.Context())).EndWith(t)
	examine(t, p.settings()).finds(t, "failover.lost", "warning", "1 of 2 standbys follow asynchronously, and failover is trust: orders", "--failover reacquire").
		ends(t, 0, "failover.lost")
}

// The doctor tries the ways to carry a fence through PgBouncer, and finds what each mode and setting
// does to them, and to locks. Before its version 1.22 a client without a name gets another's.
func TestDoctorThroughAPooler(t *testing.T) {
	stack.NeedsMore(t, "PgBouncer")
	t.Parallel()
	url := database(t, true)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	const (
		comments   = "comments survive"
		local      = "SET LOCAL lasts for its transaction"
		refused    = "the startup parameter options is refused"
		dropped    = "the startup parameter options sets nothing that lasts"
		leaks      = "what one client sets by SET another gets"
		lasts      = "SET lasts for its client's session"
		nameless   = "a client without application_name gets another's"
		keptOff    = "each client keeps its application_name, and a fence there doesn't count"
		keptCounts = "each client keeps its application_name, and a fence there counts"
		held       = "a session's advisory lock lasts for its client's session"
		shared     = "a session's advisory lock that one client takes another has, too"
		lost       = "a session's advisory lock doesn't last for its client"
		heldLocal  = "a transaction's advisory lock lasts for its transaction"
		listens    = "LISTEN lasts"
		deaf       = "LISTEN doesn't last"
		anyLock    = "for a lock: a session's or a transaction's advisory lock, or leases of Wirefence"
		localLock  = "for a lock: a transaction's advisory lock, or leases of Wirefence"
	)
	through := func(mode string, settings map[string]string) string {
		b := stack.Started(servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{
			Upstream: fmt.Sprintf("%s:%d", cfg.Host, cfg.Port), Clients: 20, PoolSize: 8, PoolMode: mode, Settings: settings})).EndWith(t)
		return b.URL(cfg.Database)
	}
	strict := map[string]string{"ignore_startup_parameters": "extra_float_digits"}
	withHost := map[string]string{"application_name_add_host": "1"}
	stack.Exec(t, url, "CREATE ROLE lockless LOGIN", "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_lock(bigint) FROM PUBLIC")
	for _, c := range []struct {
		name, url string
		counts    bool
		says      []string
	}{
		{"direct", url, false, []string{comments, local, "the startup parameter options lasts", lasts, keptOff, held, heldLocal, listens, "use for a fence: any", anyLock}},
		{"a lock is refused", strings.Replace(url, "postgres@", "lockless@", 1), false, []string{comments, local, "the startup parameter options lasts", lasts, keptOff, lost, heldLocal, listens, "use for a fence: any", localLock}},
		{"transaction", through("transaction", strict), false, []string{comments, local, refused, leaks, nameless, shared, heldLocal, deaf, "use for a fence: SET LOCAL in each transaction", localLock}},
		{"transaction, options ignored", through("transaction", nil), true, []string{comments, local, dropped, leaks, nameless, shared, heldLocal, deaf, "use for a fence: SET LOCAL in each transaction", localLock}},
		{"session", through("session", strict), true, []string{comments, local, refused, lasts, keptCounts, held, heldLocal, listens, "or wirefence lock --carry name", anyLock}},
		{"statement", through("statement", strict), false, []string{comments, "SET LOCAL doesn't last", refused, leaks, nameless, shared, "a transaction's advisory lock doesn't last", deaf, "use for a fence: a comment in each statement", "for a lock: leases of Wirefence"}},
		{"transaction, settings reset", through("transaction", map[string]string{"server_reset_query": "DISCARD ALL", "server_reset_query_always": "1"}), false, []string{comments, local, dropped, "SET sets nothing that lasts", keptOff, lost, heldLocal, deaf, "use for a fence: SET LOCAL in each transaction", localLock}},
		{"session, names with an address", through("session", withHost), true, []string{comments, local, dropped, lasts, keptCounts, held, heldLocal, listens, "or wirefence lock --carry name", anyLock}},
	} {
		stack.Exec(t, url, fmt.Sprintf("SELECT wirefence.set_carry_name(%v, 'a test')", c.counts))
		r := wirefence(t, issuer(url), "doctor", "--through", c.url)
		if bad := c.counts && c.says[4] != keptCounts; bad != strings.Contains(r.stdout, "problem    through.carriers") {
			t.Errorf("%s: a problem is %v", c.name, !bad)
		}
		r.says(t, c.says...)
		if t.Failed() {
			t.Fatal(c.name, r.stdout)
		}
	}
	wirefence(t, issuer(url), "doctor", "--through", "postgres://postgres@127.0.0.1:1/x").expect(t, exitProblem).says(t, "no session through --through")
}
