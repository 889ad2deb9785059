package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// jobs are settings of `wirefence lock` for commands that libpq's variables lead to the same
// database, which has a table without a guard.
func jobs(t *testing.T) (url string, settings []string) {
	t.Helper()
	url = database(t, true)
	stack.Exec(t, url, "CREATE TABLE jobs (worker text)")
	return url, append(issuer(url), variables(t, url)...)
}

// variables are libpq's for a connection string.
func variables(t *testing.T, url string) []string {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"PGHOST=" + cfg.Host, fmt.Sprintf("PGPORT=%d", cfg.Port), "PGUSER=" + cfg.User, "PGDATABASE=" + cfg.Database}
}

const insertJob = "INSERT INTO jobs VALUES (current_database())"

// psqlJob is a shell's command line of psql that writes.
func psqlJob(args string) string { return fmt.Sprintf(`psql -X %s -c "%s"`, args, insertJob) }

// unseen is the warning about a run of which no session was seen.
const unseen = "no session of the command was seen with its fence"

// A session of the command writes to its usual database, and not once the lease is revoked,
// whatever its own connection parameters are.
func TestLockFencesUnmodifiedPrograms(t *testing.T) {
	t.Parallel()
	programs := map[string]string{
		"psql":                        psqlJob(""),
		"psql, PGOPTIONS of its own":  "PGOPTIONS='-c statement_timeout=0' " + psqlJob(""),
		"psql, options in a conninfo": psqlJob(`"options='-c statement_timeout=0'"`),
		"psql, options in a URL":      psqlJob("'postgres:///?options=-c%20statement_timeout%3D0'"),
		"env -u PGOPTIONS psql":       "env -u PGOPTIONS " + psqlJob(""),
		"pgx":                         fmt.Sprintf("env %s='%s' %s", asPgx, insertJob, os.Args[0]),
		"pgx, PGOPTIONS of its own":   fmt.Sprintf("env PGOPTIONS='-c statement_timeout=0' %s='%s' %s", asPgx, insertJob, os.Args[0]),
		"psycopg2":                    fmt.Sprintf(`/usr/bin/python3 -c "import psycopg2; db = psycopg2.connect('options=-cstatement_timeout=0'); db.cursor().execute('%s'); db.commit()"`, insertJob),
		"psycopg 3":                   fmt.Sprintf(`/usr/bin/python3 -c "import psycopg; db = psycopg.connect('options=-cstatement_timeout=0'); db.execute('%s'); db.commit()"`, insertJob),
	}
	for name, program := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(program, "python3") {
				stack.NeedsMore(t, name)
			}
			url, settings := jobs(t)
			if r := wirefence(t, settings, "lock", "nightly", "--", "sh", "-c", program).expect(t, 0); r.stderr != "" {
				t.Errorf("standard error: %s", r.stderr)
			}
			r := wirefence(t, settings, "lock", "nightly", "--ttl=5m", "--", "sh", "-c", os.Args[0]+" revoke nightly >&2; "+program)
			if r.status == 0 || !strings.Contains(r.stderr, `stale fencing token for resource "nightly"`) || strings.Contains(r.stderr, unseen) {
				t.Errorf("status %d: %s", r.status, r.stderr)
			}
			cfg, _ := pgx.ParseConfig(url)
			becomes(t, url, cfg.Database, "SELECT string_agg(worker, ' ') FROM jobs")
		})
	}
}

// A run of which no session passed the listener isn't silent, unless it has none. What the command
// prints and its status stay.
func TestLockSaysThatNoSessionWasFenced(t *testing.T) {
	t.Parallel()
	url, settings := jobs(t)
	for _, c := range []struct{ name, command string }{
		{"env -i", fmt.Sprintf(`env -i PATH="$PATH" psql -X '%s' -Atc 'SELECT 7'; exit 3`, url)},
		{"a host of its own", fmt.Sprintf("psql -X '%s' -Atc 'SELECT 7'; exit 3", url)},
		{"no database", "echo 7; exit 3"},
	} {
		r := wirefence(t, settings, "lock", "nightly", "--", "sh", "-c", c.command).expect(t, 3, unseen, "--carry options")
		if r.stdout != "7\n" || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %q, %q", c.name, r.stdout, r.stderr)
		}
		r = wirefence(t, settings, "lock", "--carry=options", "nightly", "--", "sh", "-c", c.command).expect(t, 3)
		if r.stdout != "7\n" || r.stderr != "" {
			t.Errorf("%s, without a listener: %q, %q", c.name, r.stdout, r.stderr)
		}
	}
}

// With --carry options libpq's variables stay, and PGOPTIONS has the fence.
func TestLockCarriesByOptionsAlone(t *testing.T) {
	t.Parallel()
	url, settings := jobs(t)
	cfg, _ := pgx.ParseConfig(url)
	wirefence(t, settings, "lock", "--carry=options", "nightly", "--", "sh", "-c", `echo $PGHOST; psql -XAtc 'SHOW wirefence.token'`).
		expect(t, 0).says(t, cfg.Host+"\nnightly=1\n")
	wirefence(t, settings, "lock", "--carry=comment", "nightly", "--", "true").expect(t, exitUsage, "listener", "options", "name")
}

// The fence of an outer run is stamped, too, whichever way that carries it.
func TestLockWithinALockStampsBoth(t *testing.T) {
	t.Parallel()
	for _, outer := range []string{"listener", "options"} {
		url, settings := jobs(t)
		within := func(script string) result {
			return wirefence(t, settings, "lock", "--carry="+outer, "nightly", "--ttl=5m", "--", os.Args[0], "lock", "--carry=listener", "reports", "--", "sh", "-c", script)
		}
		job := "PGOPTIONS= " + psqlJob("")
		within(job+"; "+psqlJob("")).expect(t, 0).says(t, "INSERT 0 1\nINSERT 0 1\n")
		if r := within(os.Args[0] + " revoke nightly >&2; " + job); r.status == 0 || !strings.Contains(r.stderr, `stale fencing token for resource "nightly"`) {
			t.Errorf("carried by %s: status %d, %s", outer, r.status, r.stderr)
		}
		becomes(t, url, "2", "SELECT count(*)::text FROM jobs")
	}
}

// Nothing that the command has begun goes on at the server behind the lease: PostgreSQL itself
// finishes the statement of a client that is gone.
func TestLockEndsSessionsBeforeItsLease(t *testing.T) {
	t.Parallel()
	url, settings := jobs(t)
	running := "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = '" + t.Name() + "' AND state = 'active'"
	sleeper := "PGAPPNAME=" + t.Name() + " psql -X %s -c 'SELECT pg_sleep(600)'"
	wirefence(t, settings, "lock", "nightly", "--", "sh", "-c", fmt.Sprintf(sleeper, "")+fmt.Sprintf(` & until [ "$(psql -XAtc "%s")" = 1 ]; do :; done`, running)).
		expect(t, 0)
	becomes(t, url, "0", running)

	// The same for a lease that is lost while a transaction is open.
	lost := start(t, append(settings, "WIREFENCE_TTL=2s"), "lock", "nightly", "--", "sh", "-c", "trap '' TERM; "+fmt.Sprintf(sleeper, `-c BEGIN -c "`+insertJob+`"`)+"; sleep 60")
	becomes(t, url, "1", running)
	stack.Exec(t, url, "DELETE FROM wirefence.leases")
	lost.end(t).expect(t, 76, "nightly")
	becomes(t, url, "0", running)
	becomes(t, url, "0", "SELECT count(*)::text FROM jobs")
}

// With the lease the listener ends, while the command may go on for a moment: here it ignores
// SIGTERM, and its sessions have a fence of their own in PGOPTIONS, which no later grant outdates.
func TestLockClosesItsListenerWithItsLease(t *testing.T) {
	stack.NeedsMore(t, "20 s, and 3 s of CPU")
	t.Parallel()
	url, settings := jobs(t)
	cfg, _ := pgx.ParseConfig(url)
	link := stack.Started(servers.StartLink(fmt.Sprintf("%s:%d", cfg.Host, cfg.Port))).EndWith(t)
	r := start(t, append(settings, "WIREFENCE_DATABASE_URL="+connstring.At(url, link.Addr()), "WIREFENCE_TTL=10s"), "lock", "nightly", "--", "sh", "-c",
		"trap '' TERM; while "+psqlJob("-q")+"; do sleep 0.1; done; echo refused; sleep 60")
	becomes(t, url, "true", "SELECT (count(*) > 0)::text FROM jobs")
	link.Hold()
	r.end(t).expect(t, 76, "nightly").says(t, "refused")
}

// Clients log in with their own passwords, which they find in a variable, a password file or a
// service, and the server is reached by TLS as libpq's variables demand.
func TestLockPassesPasswordsThrough(t *testing.T) {
	stack.NeedsMore(t, "1 s of CPU")
	t.Parallel()
	a := authority.New(t)
	pair := a.Issue(t, "localhost", "127.0.0.1")
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{
		CertFile: pair.CertFile, KeyFile: pair.KeyFile,
		HBA: "local all postgres trust\nhost all postgres all trust\nhostssl all all all scram-sha-256\n",
	})).EndWith(t)
	url := pg.URL("postgres")
	if err := migrations.Apply(t.Context(), stack.Connect(t, url), nil); err != nil {
		t.Fatal(err)
	}
	stack.Exec(t, url, "CREATE ROLE app LOGIN PASSWORD 'it''s: secret'", "CREATE TABLE jobs (worker text)", "GRANT ALL ON jobs TO app")
	home := t.TempDir()
	file := func(name, text string) {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file(".pg_service.conf", fmt.Sprintf("[other]\nhost=nowhere.invalid\n[shop]\nhost=localhost\nport=%d\ndbname=postgres\nuser=app\n", pg.Port))
	file(".pgpass", "nowhere.invalid:*:*:*:wrong\n"+fmt.Sprintf(`localhost:%d:*:app:it's\: secret`, pg.Port)+"\n*:*:*:*:wrong\n")
	settings := append(issuer(url), "HOME="+home, "PGSSLMODE=verify-full", "PGSSLROOTCERT="+a.CAFile)
	at := []string{"PGHOST=localhost", fmt.Sprintf("PGPORT=%d", pg.Port), "PGUSER=app", "PGDATABASE=postgres"}
	pgxJob := []string{"env", asPgx + "=" + insertJob, os.Args[0]}
	for _, c := range []struct {
		name     string
		settings []string
		command  []string
	}{
		{"password file, psql", at, []string{"psql", "-wXc", insertJob}},
		{"password file, pgx", at, pgxJob},
		{"PGPASSWORD", append(at, "PGPASSWORD=it's: secret", "PGPASSFILE=/dev/null"), []string{"psql", "-wXc", insertJob}},
		{"service, psql", []string{"PGSERVICE=shop"}, []string{"psql", "-wXc", insertJob}},
		{"service, pgx", []string{"PGSERVICE=shop"}, pgxJob},
	} {
		if r := wirefence(t, append(settings, c.settings...), append([]string{"lock", "nightly", "--"}, c.command...)...).expect(t, 0); r.stderr != "" {
			t.Errorf("%s: %s", c.name, r.stderr)
		}
	}
	becomes(t, url, "5", "SELECT count(*)::text FROM jobs")
	wirefence(t, append(settings, append(at, "PGPASSWORD=wrong", "PGPASSFILE=/dev/null")...), "lock", "nightly", "--", "psql", "-wXc", insertJob).
		expect(t, 2, "password authentication failed")
	wirefence(t, append(settings, append(at, "PGSSLROOTCERT="+authority.New(t).CAFile)...), "lock", "nightly", "--", "psql", "-wXc", insertJob).
		expect(t, 2, "certificate")
	becomes(t, url, "5", "SELECT count(*)::text FROM jobs")
}

// Nobody else can reach the listener, which logs in as this user, and nothing of it is left.
func TestLocksListenerIsPrivate(t *testing.T) {
	t.Parallel()
	_, settings := jobs(t)
	dir := t.TempDir()
	script := `stat -c %a "$PGHOST"; psql -XAtc "SELECT 'served'"`
	wirefence(t, append(settings, "TMPDIR="+dir), "lock", "nightly", "--", "sh", "-c", script).expect(t, 0).says(t, "700\nserved\n")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	// A temporary folder that can't be used is no reason not to run the job.
	long := filepath.Join(dir, strings.Repeat("long/", 20))
	if err := os.MkdirAll(long, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tmp := range []string{filepath.Join(dir, "none"), long} {
		wirefence(t, append(settings, "TMPDIR="+tmp), "lock", "nightly", "--", "sh", "-c", script).expect(t, 0).says(t, "700\nserved\n")
	}
}

// Where libpq's variables are wrong, or Debian's pg_wrapper chooses, the lease isn't taken.
func TestLockWithoutAServerForItsListener(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	for _, wrong := range [][]string{{"PGHOST=localhost", "PGPORT=five"}, {"PGHOST=localhost", "PGSSLMODE=always"}, {"PGCLUSTER=16/main"}} {
		r := wirefence(t, append(issuer(url), wrong...), "lock", "nightly", "--", "echo", "ran").expect(t, exitUsage, "--carry options")
		if r.stdout != "" {
			t.Error("the command ran")
		}
		wirefence(t, append(issuer(url), wrong...), "lock", "--carry=options", "nightly", "--", "echo", "ran").expect(t, 0)
	}
}

// A resource may have any name.
func TestLockOfAResourceThatBeginsWithADash(t *testing.T) {
	t.Parallel()
	settings, _ := lockSettingsFor(t, database(t, true))
	wirefence(t, settings, "lock", "--carry=options", "--", "-x", "--", "sh", "-c", "echo $WIREFENCE_FENCE").expect(t, 0).says(t, "-x=1\n")
	wirefence(t, settings, "lock", "--", "-x", "echo", "ran").expect(t, exitUsage, "two dashes")
}

// A job whose fence got lost is told where it finds it.
func TestRefusalsNameTheFenceOfALock(t *testing.T) {
	t.Parallel()
	url, settings := jobs(t)
	p := startProxy(t, url, "WIREFENCE_UNFENCED_WRITES=reject")
	lost := func(args string) result {
		return wirefence(t, settings, "lock", "--carry=options", "nightly", "--", "sh", "-c", "env -u PGOPTIONS "+psqlJob(args))
	}
	lost("'"+p.url+"'").expect(t, 1, "a fencing token is required to write", "WIREFENCE_FENCE")
	stack.Exec(t, url, "SELECT wirefence.protect('jobs', 'nightly')")
	lost("").expect(t, 1, `a fencing token is required for resource "nightly"`, "WIREFENCE_FENCE")
}

// A database without the schema can't check the fence that its sessions are stamped with.
func TestLockInADatabaseWithoutTheSchema(t *testing.T) {
	t.Parallel()
	settings := append(issuer(database(t, true)), variables(t, database(t, false))...)
	wirefence(t, settings, "lock", "nightly", "--", "env", "PGOPTIONS=", "psql", "-Xc", "CREATE TABLE jobs ()").
		expect(t, 1, "the fence cannot be checked in database", "wirefence migrate")
	wirefence(t, issuer(database(t, false)), "lock", "nightly", "--", "true").expect(t, exitConfig, "wirefence migrate")
}

// psql runs through a PgBouncer that refuses the startup parameter options, under a lease whose fence
// it carries in its name.
func TestLockCarriesTheFenceByName(t *testing.T) {
	stack.NeedsMore(t, "PgBouncer")
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE nightly_jobs (token bigint); SELECT wirefence.seal('nightly', 33)")
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	pooler := stack.Started(servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{
		Upstream: fmt.Sprintf("%s:%d", cfg.Host, cfg.Port), Clients: 10, PoolSize: 2, PoolMode: "transaction",
		Settings: map[string]string{"ignore_startup_parameters": "extra_float_digits"}})).EndWith(t)
	host, port, _ := strings.Cut(pooler.Addr(), ":")
	settings := append(issuer(url), "PGHOST="+host, "PGPORT="+port, "PGUSER=postgres", "PGDATABASE="+cfg.Database)
	job := `psql -XAtc "INSERT INTO nightly_jobs VALUES ($WIREFENCE_TOKEN); SHOW application_name"`
	by := func(way string) result {
		return wirefence(t, settings, "lock", "--carry="+way, "nightly", "--", "sh", "-c", job)
	}
	by("options").expect(t, 2, "unsupported startup parameter: options")
	by("name").expect(t, exitConfig, "don't count", "wirefence carry-name on")
	wirefence(t, issuer(url), "carry-name", "on").expect(t, exitUsage, "--reason")
	wirefence(t, issuer(url), "carry-name", "perhaps", "--reason=x").expect(t, exitUsage, "on or off")
	wirefence(t, issuer(url), "carry-name", "on", "--reason", "PgBouncer hands names on").expect(t, 0).says(t, "carry_name: false -> true")
	by("name").expect(t, exitConfig, "no guard asks for \"nightly\"", "WIREFENCE_UNFENCED_WRITES=reject")
	stack.Exec(t, url, "SELECT wirefence.protect('nightly_jobs', 'nightly', true)")
	by("name").expect(t, exitConfig, "no guard asks")
	stack.Exec(t, url, "SELECT wirefence.protect('nightly_jobs', 'nightly')")
	by("name").expect(t, 0).says(t, "wirefence:nightly=", "~sh")
	r := wirefence(t, append(settings, "PGAPPNAME=the night job"), "lock", "--carry=name", "nightly", "--", "sh", "-c", "psql -XAtc 'SELECT wirefence.seal($$nightly$$, 99)'; "+job)
	r.expect(t, 1, "stale fencing token", "99")
	wirefence(t, settings, "lock", "--carry=name", strings.Repeat("n", 37), "--", "true").expect(t, exitUsage, "65 bytes", "shorter name")
	wirefence(t, append(settings, "WIREFENCE_FENCE="+strings.Repeat("n", 50)+"=1"), "lock", "--carry=name", "nightly", "--", "true").expect(t, 126, "PostgreSQL keeps 63")

	// Without a guard a proxy that rejects such writes notices, too.
	stack.Exec(t, url, "SELECT wirefence.unprotect('nightly_jobs')")
	by("name").expect(t, exitConfig, "no guard asks")
	p := startProxy(t, url, "WIREFENCE_UNFENCED_WRITES=reject")
	through, _ := pgx.ParseConfig(p.url)
	settings = append(settings, "PGHOST="+through.Host, fmt.Sprint("PGPORT=", through.Port))
	by("name").expect(t, 0).says(t, "wirefence:nightly=")
}
