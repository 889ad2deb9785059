package jobstest

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/internal/zombie"
)

var (
	every = flag.Bool("all", false, "explore the jobs of all libraries, and under a lease with a guard, too")
	page  = flag.String("page", "", "write what was found into this page, docs/reference/explored.md")
	times = flag.Int("times", 1, "how often each job that is right is explored")
)

// library is a job around a lock, as the README of the lock's library shows it.
type library struct {
	name    string
	file    string // names the version behind the text
	text    string
	command []string
	setup   string // a command for sh
	reset   string // one that puts back what isn't in totals
	ends    string // one that ends the lock; or a time, "4s", after which it ends
	watch   string // instead of totals
	key     string // the lock in Redis
	inside  bool   // the lock is in the database
	always  bool   // it is played without -page, too
}

const (
	fromPyPI  = "testdata/requirements.txt"
	fromNPM   = "testdata/node/package.json"
	fromMaven = "../../../cmd/wirefence/testdata/locks/pom.xml"
	fromGo    = "go.mod"
	makeRow   = `psql -Xqd {url} -c "CREATE TABLE cron_locks (until timestamptz)" -c "INSERT INTO cron_locks VALUES (now())"`
	freeRow   = `psql -Xqd {url} -c "UPDATE cron_locks SET until = now()"`
)

func inPython(name string) []string {
	return []string{"env", "PYTHONPATH=" + filepath.Join(servers.CacheDir(), "python-locks"), python, "testdata/libraries.py", name}
}

func inNode(name string) []string { return []string{"node", "{dir}/libraries.mjs", name} }

func inGo(name string) []string { return []string{"env", goJob + "=" + name, os.Args[0]} }

var libraries = []library{
	{name: "redis-py, `Lock`", always: true, file: fromPyPI, text: "redis==", command: inPython("redis_py"), key: "nightly", ends: flushRedis},
	{name: "node-redlock, `using`", file: fromNPM, text: `"redlock"`, command: inNode("redlock"), key: "nightly", ends: flushRedis},
	{name: "redsync, `Mutex`", file: fromGo, text: "go-redsync/redsync/v4", command: inGo("redsync"), key: "nightly", ends: flushRedis},
	{name: "bsm/redislock, `Obtain`", file: fromGo, text: "bsm/redislock", command: inGo("redislock"), key: "nightly", ends: flushRedis},
	{name: "ShedLock, `executeWithLock`", inside: true, file: fromMaven, text: "shedlock-provider-jdbc-template", command: []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", "{dir}:" + filepath.Join(servers.CacheDir(), "java-locks", "*"), "Shed", "{jdbc}"},
		setup: `psql -Xqd {url} -c "CREATE TABLE shedlock (name varchar(64) PRIMARY KEY, lock_until timestamp NOT NULL, locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)" && javac -d {dir} -cp "` + filepath.Join(servers.CacheDir(), "java-locks", "*") + `" testdata/Shed.java`,
		reset: `psql -Xqd {url} -c "TRUNCATE shedlock"`, ends: `psql -Xqd {url} -c "UPDATE shedlock SET lock_until = timezone('utc', now())"`},
	{name: "celery-once, `QueueOnce`", file: fromPyPI, text: "celery-once==", command: inPython("celery_once"), key: "qo_nightly", ends: flushRedis},
	{name: "APScheduler, `max_instances=1`", file: fromPyPI, text: "apscheduler==", command: inPython("apscheduler"), ends: "true"},
	{name: "node-cron, a lock in a table", inside: true, file: fromNPM, text: `"node-cron"`, command: inNode("node-cron"),
		setup: makeRow, reset: freeRow, ends: freeRow},
	{name: "pg-boss, `work`", inside: true, file: fromNPM, text: `"pg-boss"`, command: inNode("pg-boss"), setup: "node {dir}/libraries.mjs pg-boss setup",
		reset: `psql -Xqd {url} -c "UPDATE pgboss.job SET state = 'created', retry_count = 0, started_on = NULL, completed_on = NULL, output = NULL, start_after = now()"`, ends: "node {dir}/libraries.mjs pg-boss supervise"},
	{name: "BullMQ, `Worker`", file: fromNPM, text: `"bullmq"`, command: inNode("bullmq"), setup: "node {dir}/libraries.mjs bullmq setup", reset: "node {dir}/libraries.mjs bullmq setup", ends: "3s"},
	{name: "pgxpool, a leader by advisory lock", always: true, inside: true, file: fromGo, text: "jackc/pgx/v5", command: inGo("leader"), ends: cut},
	{name: "langgraph-checkpoint-postgres, `PostgresSaver` under redis-py's `Lock`", file: fromPyPI, text: "langgraph-checkpoint-postgres==", command: inPython("langgraph"), key: "nightly", setup: strings.Join(inPython("langgraph"), " ") + " setup",
		reset: `psql -Xqd {url} -c "SET session_replication_role = replica" -c "TRUNCATE checkpoints, checkpoint_blobs, checkpoint_writes"`, ends: flushRedis, watch: "checkpoints,checkpoint_blobs"},
}

// version is that of the library that is installed.
func (l library) version(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(regexp.QuoteMeta(l.text) + `[^0-9]*([0-9][0-9A-Za-z.-]*)`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s does not name %s", l.file, l.text)
	}
	return string(found[1])
}

// explore explores the job, alone or under a lease with a guard.
func (l library) explore(t *testing.T, guarded bool) (e explored, took time.Duration) {
	t.Helper()
	w := newWorld(t)
	text, err := os.ReadFile("testdata/node/libraries.mjs")
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(w.dir, "libraries.mjs"), text, 0o600),
			os.Symlink(filepath.Join(servers.CacheDir(), "jobs", "node_modules"), filepath.Join(w.dir, "node_modules")))
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", w.words(cmp.Or(l.setup, "true"))[0])
	cmd.Env = w.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	watched := cmp.Or(l.watch, "totals")
	flags := []string{"--watch", watched, "--reset", strings.Join([]string{resetTotals, flushRedis, cmp.Or(l.reset, "true")}, " && ")}
	switch {
	case l.key != "":
		flags = append(flags, "--lock-key", l.key)
	case l.inside:
		flags = append(flags, inCopies...)
	}
	command, status := l.command, 1
	ends := l.ends
	if guarded {
		w.guard(t, "app", strings.Split(watched, ",")...)
		w.Exec(t, "DO $$ BEGIN IF to_regnamespace('pgboss') IS NOT NULL THEN GRANT ALL ON SCHEMA pgboss TO app; GRANT ALL ON ALL TABLES IN SCHEMA pgboss TO app; END IF; END $$")
		command, status = append(append([]string{}, underLease...), command...), 0
	}
	if _, err := time.ParseDuration(ends); err == nil {
		flags = append(flags, "--lock-ends-after", ends)
	} else {
		if guarded {
			ends += "; " + revoke
		}
		flags = append(flags, "--end-lock", ends)
	}
	began := time.Now()
	e = w.explore(t, status, flags, command)
	return e, time.Since(began)
}

// windows are those in which a write is stale, for people.
func (e explored) windows() string {
	var all []string
	for _, w := range e.Windows {
		if w.Shows == zombie.ShowsStale {
			from := "the start"
			if w.Behind != "" {
				from = "`" + w.Behind + "`"
			}
			all = append(all, fmt.Sprintf("from %s to before `%s`", from, w.Before))
		}
	}
	return strings.Join(all, "; ")
}

// job is what the page calls the job.
func (l library) job(t *testing.T) string {
	library, how, _ := strings.Cut(l.name, ", ")
	return fmt.Sprintf("| %s %s, %s |", library, l.version(t), how)
}

// In each job around a library's lock the explorer finds where a write may be stale, and nowhere
// under a lease with a guard. The page says where.
func TestLibraries(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "the lock libraries")
	known, err := os.ReadFile("../../../docs/reference/explored.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make([]string, len(libraries))
	t.Run("all", func(t *testing.T) {
		for i, l := range libraries {
			if row := l.job(t); *page == "" && !strings.Contains(string(known), row) {
				t.Errorf("docs/reference/explored.md has no row %s: run make explored", row)
			}
			if !*every && !l.always {
				continue
			}
			t.Run(strings.NewReplacer(" ", "_", ",", "", "`", "", "/", "_").Replace(l.name), func(t *testing.T) {
				t.Parallel()
				e, took := l.explore(t, false)
				row := fmt.Sprintf("%s %s |", l.job(t), e.windows())
				if *page == "" && !strings.Contains(string(known), row) {
					t.Errorf("docs/reference/explored.md has no row %s: run make explored", row)
				}
				if !*every {
					return
				}
				if t.Failed() {
					return
				}
				guarded, long := l.explore(t, true)
				shown := cmp.Or(guarded.Reason, string(guarded.Verdict))
				rows[i] = fmt.Sprintf("%s %s | %s: %s |\n", row, e.effort(took), shown, guarded.effort(long))
			})
		}
	})
	for i, l := range libraries {
		rows[i] = cmp.Or(rows[i], regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(l.job(t))+`.*\n`).FindString(string(known))) // not played now
	}
	writePage(t, "libraries", rows)
}

// node-postgres sends two queries of Promise.all at once, on two connections of a pool. No moment between
// its messages is stale, but one with the second query ahead of the first, that of the version.
func TestStatementsInFlight(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "node-postgres")
	e, _ := library{command: inNode("pg-pool"), inside: true, setup: makeRow + ` -c "ALTER TABLE totals ADD version int DEFAULT 0"`,
		reset: freeRow + ` -c "UPDATE totals SET version = 0"`, ends: freeRow}.explore(t, false)
	if got := e.windows(); strings.Count(got, "from ") != 1 || !strings.Contains(got, ", with SELECT orders FROM totals ahead of it`") {
		t.Error(got)
	}
}

// effort is how many moments were played, and for how long.
func (e explored) effort(took time.Duration) string {
	return fmt.Sprintf("%d of %d in %.0f s", e.Tried, e.Messages, took.Seconds())
}

// writePage replaces a table's rows in the page, if there is one.
func writePage(t *testing.T, table string, rows []string) {
	t.Helper()
	if *page == "" {
		return
	}
	text, err := os.ReadFile(*page)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?s)(<!-- begin: ` + table + `, written by make explored -->\n.*?\n\|[-:|]+\|\n).*?(\n<!-- end -->)`)
	if !found.Match(text) {
		t.Fatalf("%s has no place for the table of %s", *page, table)
	}
	if err := os.WriteFile(*page, found.ReplaceAll(text, []byte("${1}"+strings.ReplaceAll(strings.Join(rows, ""), "$", "$$")+"${2}")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Jobs that are right by themselves are never accused.
func TestRightJobs(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "psycopg2")
	ways := []string{"checked", "versioned", "idempotent", "one transaction"}
	rows := make([]string, len(ways))
	t.Run("all", func(t *testing.T) {
		for i, way := range ways {
			t.Run(strings.ReplaceAll(way, " ", "_"), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.Exec(t, "CREATE TABLE locks (owner text, until timestamptz)", "INSERT INTO locks VALUES ('nobody', now())")
				free := `psql -Xqd {url} -c "UPDATE locks SET until = now()"`
				var e explored
				began := time.Now()
				for range *times {
					if e = w.explore(t, 0, append([]string{"--end-lock", free, "--reset", resetTotals + " && " + free}, inCopies...), []string{python, "testdata/right.py", way}); t.Failed() {
						return
					}
				}
				rows[i] = fmt.Sprintf("| %s | %s | %d | %s |\n", way, strings.Join(e.shows(), ", "), *times, e.effort(time.Since(began)/time.Duration(*times)))
			})
		}
	})
	writePage(t, "right jobs", rows)
}
