package jobstest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/internal/zombie"
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
	if does := goJobs[os.Getenv(goJob)]; does != nil {
		if err := does(context.Background()); err != nil {
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
	{name: "River worker", command: []string{"env", goJob + "=river", os.Args[0]}, lockEndsAfter: "16s", secondFor: "20s"},
	{name: "migration, as Flyway's", command: []string{python, "testdata/migrate.py"}, lockEndsAfter: "4s"},
	{name: "leader through PgBouncer", command: []string{python, "testdata/leader.py"}, lockEndsAfter: "5s", secondFor: "6s"},
}

// underLease is what runs a command with a lease and its fence.
var underLease = []string{"{wirefence}", "lock", "nightly", "--ttl", "3s", "--wait", "10m", "--"}

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
	{"`wirefence lock` and a guard", before(underLease...)},
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

// play plays a job under a lock, and returns what the table says of it.
func play(t *testing.T, j job, l lock) string {
	t.Helper()
	w := newWorld(t)
	if strings.HasPrefix(j.name, "River") {
		if err := prepareRiver(t.Context(), w.URL(w.Name)); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(l.name, "guard") {
		role := "app"                               // a takeover can't end a superuser's session
		if strings.HasSuffix(j.name, "PgBouncer") { // which lets in the superuser alone
			role = "postgres"
		}
		w.guard(t, role, "totals")
	}
	pooler := stack.Started(servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{
		Upstream: fmt.Sprintf("%s:%d", w.cfg.Host, w.cfg.Port), Clients: 10, PoolSize: 1, PoolMode: "transaction", Settings: map[string]string{"ignore_startup_parameters": "options,extra_float_digits"}})).EndWith(t)
	args := []string{"zombie", "--watch", "public.totals", "--freeze-when", "SELECT EXISTS (SELECT FROM runs)",
		"--lock-ends-after", j.lockEndsAfter, "--control", "1s", "--within", "90s", "--term-grace", "5s", "--yes", "-o", "json"}
	if j.secondFor != "" {
		args = append(args, "--second-for", j.secondFor)
	}
	args = append(append(args, "--"), l.wrap(j.name, j.command)...)
	var out, log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, w.words(args...)...)
	cmd.Stdout, cmd.Stderr = &out, &log
	cmd.Env = append(w.env, "POOLER="+stack.Port(pooler.Addr()))
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	var r zombie.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	t.Logf("status %d: %+v", cmd.ProcessState.ExitCode(), r)
	if n := stack.Value[int](t, w.DB, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); n > 0 {
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
