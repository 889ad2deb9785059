package jobstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// The distribution's, which has Celery.
const python = "/usr/bin/python3"

var suite = stack.Suite{Parallel: 8, Objects: `
	CREATE TABLE runs (at timestamptz DEFAULT now());
	CREATE TABLE orders (id int);
	INSERT INTO orders VALUES (1), (2), (3);
	CREATE TABLE totals (day date PRIMARY KEY, orders int, by text);
	INSERT INTO totals VALUES ('2026-11-23', 1, 'nobody');
	CREATE TABLE schema_history (version int PRIMARY KEY);
	CREATE ROLE app LOGIN`}

// program is wirefence.
var program string

func TestMain(m *testing.M) {
	if os.Getenv(riverProcess) != "" {
		if err := workRiver(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "wf-jobs-")
	if err == nil {
		program = filepath.Join(dir, "wirefence")
		build := exec.Command("go", "build", "-o", program, "./cmd/wirefence")
		build.Dir, build.Stderr = "../../..", os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := suite.Run(m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// job is a job as users have it.
type job struct {
	name    string
	command []string
	// A service doesn't end by itself; its second run is frozen after this time.
	secondFor     string
	lockEndsAfter string
}

var jobs = []job{
	{name: "cron script with psql", command: []string{"sh", "testdata/nightly.sh"}, lockEndsAfter: "4s"},
	{name: "Celery, beat and worker", command: []string{"sh", "-c",
		`cd testdata && exec ` + python + ` -m celery -A nightly worker --beat --pool solo --schedule "$TMPDIR/beat.$$" --pidfile= -l warning`}, lockEndsAfter: "5s", secondFor: "10s"},
	// Another worker becomes River's leader after 15 seconds, and rescues the job.
	{name: "River worker", command: []string{"env", riverProcess + "=1", os.Args[0]}, lockEndsAfter: "16s", secondFor: "20s"},
	{name: "migration, as Flyway's", command: []string{python, "testdata/migrate.py"}, lockEndsAfter: "4s"},
	{name: "leader through PgBouncer", command: []string{python, "testdata/leader.py"}, lockEndsAfter: "5s", secondFor: "6s"},
}

// lock is a lock under which a command runs.
type lock struct {
	name string
	wrap func(name string, command []string) []string
}

var locks = []lock{
	{"none", func(_ string, command []string) []string { return command }},
	{"`flock -n`", before("flock", "-n", "{dir}/lock")},
	{"advisory lock", func(name string, command []string) []string {
		if name == "leader through PgBouncer" { // takes its lock itself, through PgBouncer
			return before("env", "ADVISORY=1")(name, command)
		}
		return before(python, "testdata/advisory.py")(name, command)
	}},
	{"advisory lock, its session lost", before("env", "LOCK_OPTIONS=-c idle_session_timeout=1s", python, "testdata/advisory.py")},
	{"Redis, `SET NX PX`", before(python, "testdata/redislock.py")},
	{"`wirefence lock` and a guard", before("{wirefence}", "lock", "nightly", "--ttl", "3s", "--wait", "30s", "--")},
}

func before(words ...string) func(string, []string) []string {
	return func(_ string, command []string) []string { return append(append([]string{}, words...), command...) }
}

// What the table says of a verdict.
const (
	stale  = "**yes**"
	none   = "no"
	failed = "no second run"
)

// want is the table, by jobs and locks.
var want = [][]string{
	{stale, failed, failed, stale, stale, none},
	{stale, failed, failed, stale, stale, none},
	{stale, failed, failed, stale, stale, none},
	{stale, failed, failed, stale, stale, none},
	{stale, failed, stale, stale, stale, none},
}

// Each job is played under each lock, and shows what the page says.
func TestJobs(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "PgBouncer and Celery")
	var mu sync.Mutex
	got := make([][]string, len(jobs))
	t.Run("all", func(t *testing.T) {
		for i, j := range jobs {
			got[i] = make([]string, len(locks))
			for k, l := range locks {
				t.Run(strings.ReplaceAll(j.name+"/"+l.name, " ", "_"), func(t *testing.T) {
					t.Parallel()
					shown := play(t, j, l)
					if shown != want[i][k] {
						t.Errorf("%s, not %s", shown, want[i][k])
					}
					mu.Lock()
					defer mu.Unlock()
					got[i][k] = shown
				})
			}
		}
	})
	page, err := os.ReadFile("../../../docs/howto/zombie.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, j := range jobs {
		if row := "| " + j.name + " | " + strings.Join(got[i], " | ") + " |\n"; !strings.Contains(string(page), row) {
			t.Errorf("docs/howto/zombie.md doesn't have the row\n%s", row)
		}
	}
}

// report is what `wirefence zombie` prints.
type report struct {
	Verdict, Reason string
	Writes          []struct{ Table, Operation string }
	Second          struct {
		Status *int
		Writes int
	}
	Notes []string
}

// play plays a job under a lock, and returns what the table says of it.
func play(t *testing.T, j job, l lock) string {
	t.Helper()
	db := suite.Database(t, 0)
	url := db.URL(db.Name)
	if strings.HasPrefix(j.name, "River") {
		if err := prepareRiver(t.Context(), url); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(l.name, "guard") {
		if !strings.HasSuffix(j.name, "PgBouncer") { // which lets in the superuser alone
			cfg.User = "app" // a takeover can't end a superuser's session
		}
		db.Exec(t, "SELECT wirefence.protect('public.totals', 'nightly')",
			"SELECT wirefence.declare_resource('nightly', 'an acquire gives up before the ttl of 3 s is over', preempt_after => '1 s')",
			"GRANT ALL ON ALL TABLES IN SCHEMA public TO app", "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app")
	}
	redis := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
	pooler := stack.Started(servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{
		Upstream: fmt.Sprintf("%s:%d", cfg.Host, cfg.Port), Clients: 10, PoolSize: 1, PoolMode: "transaction", Settings: map[string]string{"ignore_startup_parameters": "options,extra_float_digits"}})).EndWith(t)
	dir := t.TempDir()
	args := []string{"zombie", "--watch", "public.totals", "--freeze-when", "SELECT EXISTS (SELECT FROM runs)",
		"--lock-ends-after", j.lockEndsAfter, "--control", "1s", "--within", "90s", "--term-grace", "5s", "--yes", "-o", "json"}
	if j.secondFor != "" {
		args = append(args, "--second-for", j.secondFor)
	}
	args = append(args, "--")
	for _, word := range l.wrap(j.name, j.command) {
		args = append(args, strings.NewReplacer("{dir}", dir, "{wirefence}", program).Replace(word))
	}
	var out, log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &out, &log
	cmd.Env = append(os.Environ(), "WIREFENCE_DATABASE_URL="+url, "PGHOST="+cfg.Host, fmt.Sprint("PGPORT=", cfg.Port), "PGUSER="+cfg.User, "PGDATABASE="+cfg.Database,
		"PGSSLMODE=disable", "BROKER="+redis.URL(), "REDIS="+redis.URL(), "LOCK=nightly", "POOLER="+stack.Port(pooler.Addr()), "TMPDIR="+dir)
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	t.Logf("status %d: %+v", cmd.ProcessState.ExitCode(), r)
	if n := stack.Value[int](t, db, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); n > 0 {
		t.Errorf("%d slots are left", n)
	}
	switch status := cmd.ProcessState.ExitCode(); {
	case status == 1 && r.Verdict == "stale" && len(r.Writes) > 0 && r.Second.Writes > 0:
		return stale
	case status == 0 && r.Verdict == "none" && len(r.Writes) == 0 && r.Second.Writes > 0:
		return none
	case status == 2 && r.Verdict == "unknown" && strings.Contains(r.Reason, "the second run failed") && r.Second.Writes == 0:
		return failed
	default:
		t.Errorf("status %d: %+v\n%s", status, r, log.String())
		return "?"
	}
}
