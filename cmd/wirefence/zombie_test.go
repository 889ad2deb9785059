package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/internal/zombie"
)

// played is a database in which jobs are played. Their environment leads psql there.
type played struct {
	url      string
	settings []string
	dir      string // the TMPDIR of all processes
}

func toPlay(t *testing.T) *played {
	t.Helper()
	stack.NeedsMore(t, "half a minute of CPU, with all that zombie plays")
	url := database(t, false)
	stack.Exec(t, url, "CREATE TABLE totals (day date PRIMARY KEY, n int, by text)", "INSERT INTO totals VALUES ('2026-11-23', 0, 'nobody')",
		"CREATE TABLE runs (run text)")
	p := &played{url: url, dir: t.TempDir()}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	p.settings = []string{"WIREFENCE_DATABASE_URL=" + url, "PGHOST=" + cfg.Host, fmt.Sprint("PGPORT=", cfg.Port), "PGUSER=" + cfg.User, "PGDATABASE=" + cfg.Database, "TMPDIR=" + p.dir}
	return p
}

// args are the command line of a short play. Flags may be given again.
func (p *played) args(script string, flags ...string) []string {
	args := []string{"zombie", "--watch", "totals", "--freeze-when", "SELECT EXISTS (SELECT FROM runs)", "--lock-ends-after", "300ms",
		"--control", "100ms", "--within", "30s", "--term-grace", "1s", "--yes"}
	return append(append(args, flags...), "--", "sh", "-c", "set -e\n"+script)
}

// report plays, and returns what is printed as JSON.
func (p *played) report(t *testing.T, status int, script string, flags ...string) (r zombie.Report) {
	t.Helper()
	got := wirefence(t, p.settings, p.args(script, append(flags, "-o", "json")...)...).expect(t, status)
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatalf("%v:\n%s%s", err, got.stdout, got.stderr)
	}
	p.wantNothingLeft(t)
	return r
}

func (p *played) wantNothingLeft(t *testing.T) {
	t.Helper()
	becomes(t, p.url, "0", "SELECT count(*)::text FROM pg_replication_slots WHERE database = current_database()")
	for _, process := range processesOf(p.dir) {
		t.Errorf("this process was left: %s", process)
	}
}

// nightly reads, and writes later what it has read.
const nightly = `
	n=$(psql -XAtqc "SELECT n + 1 FROM totals")
	psql -Xqc "INSERT INTO runs VALUES ('$$')"
	sleep 0.5
	psql -Xqc "UPDATE totals SET n = $n, by = '$$'"
	psql -Xqc "UPDATE totals SET by = by"`

func TestZombieFindsStaleWrites(t *testing.T) {
	t.Parallel()
	p := toPlay(t)
	r := p.report(t, exitStale, nightly)
	if r.Verdict != zombie.Stale || len(r.Writes) != 2 || r.First.Writes != 0 || r.Second.Writes != 2 || *r.First.Status != 0 || *r.Second.Status != 0 ||
		!slices.Equal(r.Decoded, []string{"public.totals"}) || len(r.Compared)+len(r.Notes) != 0 {
		t.Fatalf("%+v", r)
	}
	w := r.Writes[0]
	if *w.Before["n"] != "1" || *w.After["n"] != "1" || *w.Before["by"] == *w.After["by"] || *w.Key["day"] != "2026-11-23" || w.Operation != "UPDATE" || w.Transaction == 0 {
		t.Errorf("%+v", w)
	}
	if w := r.Writes[1]; len(w.After) != 3 || len(w.After.Changed(w.Before)) != 0 {
		t.Errorf("%+v", w)
	}
	stack.Exec(t, p.url, "TRUNCATE runs")
	wirefence(t, p.settings, p.args(nightly)...).expect(t, exitStale, "the second run has been started").
		says(t, "STALE: the first run made 2 changes", "public.totals  UPDATE     day='2026-11-23'  by=", "status 0")
}

// A role without REPLICATION compares the tables, and doesn't see the second write, which changes
// nothing.
func TestZombieCompares(t *testing.T) {
	t.Parallel()
	p := toPlay(t)
	stack.Exec(t, p.url, `DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`,
		"GRANT SELECT ON totals, runs TO reader", "CREATE UNLOGGED TABLE unlogged (n int)")
	p.settings[0] = strings.Replace(p.settings[0], "postgres@", "reader@", 1)
	r := p.report(t, exitStale, nightly)
	if len(r.Writes) != 1 || !slices.Equal(r.Compared, []string{"public.totals"}) || len(r.Decoded) != 0 || len(r.Notes) == 0 || r.Writes[0].Operation != "UPDATE" {
		t.Errorf("%+v", r)
	}
	// Where the role may decode, an unlogged table is compared all the same.
	p.settings[0] = "WIREFENCE_DATABASE_URL=" + p.url
	stack.Exec(t, p.url, "TRUNCATE runs")
	r = p.report(t, exitStale, nightly+"\n"+`psql -Xqc "INSERT INTO unlogged VALUES (1)"`, "--watch", "unlogged")
	if len(r.Writes) != 3 || !slices.Equal(r.Compared, []string{"public.unlogged"}) || !slices.Equal(r.Decoded, []string{"public.totals"}) {
		t.Errorf("%+v", r)
	}
}

// A job that writes what it has computed only if nobody has written meanwhile is right without
// any lock.
func TestZombieOfARightJob(t *testing.T) {
	t.Parallel()
	const versioned = `
		n=$(psql -XAtqc "SELECT n FROM totals")
		psql -Xqc "INSERT INTO runs VALUES ('$$')"
		sleep 0.3
		psql -Xqc "UPDATE totals SET n = n + 1, by = '$$' WHERE n = $n"`
	plays := 100
	if testing.Short() {
		plays = 3
	}
	p := toPlay(t)
	for i := range plays {
		stack.Exec(t, p.url, "TRUNCATE runs")
		if r := p.report(t, 0, versioned); r.Verdict != zombie.None || len(r.Writes) != 0 || r.Second.Writes != 1 || len(r.Notes) != 0 {
			t.Fatalf("play %d: %+v", i, r)
		}
	}
}

// What a statement that was under way commits when the second run has the turn is the first's.
func TestZombieKnowsALateCommit(t *testing.T) {
	t.Parallel()
	p := toPlay(t)
	script := `if mkdir "$TMPDIR/first"; then
			psql -Xqc "INSERT INTO runs VALUES ('1')"
			psql -Xqc "BEGIN; INSERT INTO totals VALUES ('2026-11-24', 1, 'first'); SELECT pg_sleep(9); COMMIT" >/dev/null
		else
			psql -Xqc "INSERT INTO totals VALUES ('2026-11-25', 1, 'second')"
			until psql -XAtc "SELECT day FROM totals" | grep -q 2026-11-24; do sleep 0.1; done
		fi`
	r := p.report(t, exitStale, script, "--freeze-when", "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'BEGIN; INSERT INTO totals%' AND wait_event = 'PgSleep' AND datname = current_database()")
	if len(r.Writes) != 1 || *r.Writes[0].After["by"] != "first" || r.Second.Writes != 1 || len(r.Notes) != 1 {
		t.Errorf("%+v", r)
	}
}

// A service doesn't end by itself. While the first goes on, the second, frozen, still leads.
func TestZombieOfAService(t *testing.T) {
	t.Parallel()
	p := toPlay(t)
	r := p.report(t, exitStale, `psql -Xqc "INSERT INTO runs VALUES (1)"; sleep 0.2
		while :; do psql -Xqc "UPDATE totals SET n = n + 1, by = '$$'"; sleep 0.1; done`, "--second-for", "4s", "--lock-ends-after", "8s")
	if r.Second.Frozen == nil || r.Second.Ended != nil || r.First.Ended != nil || r.Second.Writes == 0 || len(r.Writes) == 0 {
		t.Fatalf("%+v", r)
	}
	for _, w := range r.Writes[1:] {
		if *w.After["by"] != *r.Writes[0].After["by"] {
			t.Errorf("writes of both runs: %+v", r.Writes)
		}
	}
}

func TestZombieCannotTell(t *testing.T) {
	t.Parallel()
	// The second run finds the folder.
	const first = `if mkdir "$TMPDIR/first" 2>/dev/null; then psql -Xqc "INSERT INTO runs VALUES (1)"; `
	for name, c := range map[string]struct {
		script string
		flags  []string
		why    string
	}{
		"ended before":  {"true", nil, "it ended before, with status 0"},
		"never true":    {"sleep 60", []string{"--within", "1s"}, "the query was not true within 1s"},
		"second failed": {first + "sleep 60; fi; exit 75", nil, "the second run failed, with status 75"},
		"second idle":   {first + "sleep 60; fi", nil, "the second run changed nothing"},
		"second waits":  {`exec 9>"$TMPDIR/lock"; flock 9; ` + first + "sleep 60; fi", []string{"--within", "2s"}, "the second run has not ended within 2s"},
		"second waits for a row": {`{ echo "BEGIN; UPDATE totals SET n = n + 1;"; sleep 0.5; ` + first + `sleep 60; fi; } | psql -Xq`,
			[]string{"--within", "3s"}, "waits for a lock of process"},
		"first never ends": {first + `sleep 60; fi; psql -Xqc "UPDATE totals SET n = 7"`, []string{"--within", "4s"}, "the first run has not ended within 4s"},
		"second's daemon":  {first + `sleep 60; fi; setsid sleep 60 & psql -Xqc "UPDATE totals SET n = 7"`, nil, "left processes behind"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := toPlay(t)
			r := p.report(t, exitUnknown, c.script, c.flags...)
			if r.Verdict != zombie.Unknown || !strings.Contains(r.Reason, c.why) {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestZombieNoticesOtherWriters(t *testing.T) {
	t.Parallel()
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		p := toPlay(t)
		other := stack.Connect(t, p.url)
		tx, err := other.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		p.settings[0] = strings.Replace(p.settings[0], "postgres@", "reader@", 1) // decoding would wait for it
		stack.Exec(t, p.url, `DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`, "GRANT SELECT ON totals, runs TO reader")
		stack.MustExec(t, other, "UPDATE totals SET by = 'other'")
		if r := p.report(t, exitUnknown, nightly); !strings.Contains(r.Reason, fmt.Sprint("server process ", other.PgConn().PID())) || r.First.Started != nil {
			t.Errorf("%+v", r)
		}
	})
	for name, when := range map[string]string{
		"frozen": "before the second", "after": "at the end",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := toPlay(t)
			r := start(t, p.settings, p.args(nightly, "--lock-ends-after", "2s", "--control", "2s", "-o", "json")...)
			step, until := "it is frozen", "the second run has been started"
			if when == "at the end" {
				step, until = "the first run goes on\nwirefence zombie: looking", "\"verdict\""
			}
			r.stderr.Await(t, step)
			conn := stack.Connect(t, p.url)
			for over := false; !over; {
				stack.MustExec(t, conn, "UPDATE totals SET by = 'other'")
				stack.MustExec(t, conn, "SELECT pg_sleep(0.05)")
				over = strings.Contains(r.stderr.String()+r.stdout.String(), until)
				select {
				case <-r.exited:
					over = true
				default:
				}
			}
			r.end(t).expect(t, exitUnknown).says(t, "others write to the tables")
			p.wantNothingLeft(t)
		})
	}
}

func TestZombieIsEndedWithAllThatItStarted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		signal syscall.Signal
		status int
	}{{syscall.SIGINT, 130}, {syscall.SIGTERM, 143}, {syscall.SIGHUP, exitUnknown}, {syscall.SIGKILL, -1}} {
		steps := []string{"it is frozen"}
		if c.signal == syscall.SIGTERM {
			steps = append(steps, "looking for other writers", "the first run has been started", "the second run has been started")
		}
		for _, step := range steps {
			t.Run(c.signal.String()+"/"+step, func(t *testing.T) {
				t.Parallel()
				p := toPlay(t)
				// Besides SIGKILL it also ends what has left the group.
				daemon := `(setsid sleep 60 >/dev/null 2>&1 &) `
				if c.signal == syscall.SIGKILL {
					daemon = ""
				}
				r := start(t, p.settings, p.args(daemon+"\n"+`psql -Xqc "INSERT INTO runs VALUES (1)"; trap '' TERM; exec >/dev/null 2>&1; sleep 60 & sleep 60`, "--control", "1s", "--lock-ends-after", "1s")...)
				r.stderr.Await(t, step)
				r.signal(t, c.signal)
				<-r.exited
				if got := r.cmd.ProcessState.ExitCode(); got != c.status {
					t.Errorf("status %d: %s", got, r.stderr.String())
				}
				if c.signal == syscall.SIGKILL { // the kernel ends them a moment later
					stack.Eventually(t, "the processes have ended", func() bool { return len(processesOf(p.dir)) == 0 })
				}
				p.wantNothingLeft(t)
			})
		}
	}
}

func TestZombieAsksBefore(t *testing.T) {
	t.Parallel()
	p := toPlay(t)
	withoutYes := slices.DeleteFunc(p.args(nightly), func(word string) bool { return word == "--yes" })
	wirefence(t, p.settings, withoutYes...).expect(t, exitUsage, "--yes")
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for answer, c := range map[string]struct {
		status int
		says   string
	}{"n": {exitUnknown, "not confirmed"}, "": {exitUnknown, "not confirmed"}, "y": {exitStale, "STALE"}} {
		script := filepath.Join(t.TempDir(), "play")
		var line strings.Builder
		for _, word := range append([]string{executable}, withoutYes...) {
			line.WriteString("'" + strings.ReplaceAll(word, "'", `'\''`) + "' ")
		}
		if err := os.WriteFile(script, []byte(line.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "script", "--quiet", "--return", "--command", "sh "+script, os.DevNull) // it has a terminal
		cmd.Env, cmd.Stdin = append(os.Environ(), p.settings...), strings.NewReader(answer+"\n")
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != c.status || !strings.Contains(string(out), c.says) || !strings.Contains(string(out), "Go on? [y/N]") {
			t.Errorf("%q: status %s\n%s", answer, strconv.Itoa(got), out)
		}
	}
}

func TestZombieWithWrongInput(t *testing.T) {
	t.Parallel()
	p := toPlay(t)
	stack.Exec(t, p.url, "CREATE VIEW seen AS SELECT 1")
	for _, c := range []struct{ flags, says string }{
		{"--freeze-after 1s --lock-ends-after 1s -- true", "--watch is missing"},
		{"--watch totals --lock-ends-after 1s -- true", "--freeze-when or --freeze-after is missing"},
		{"--watch totals --freeze-after 1s -- true", "--lock-ends-after is missing"},
		{"--watch totals --freeze-after 1s --lock-ends-after 1s", "wants two dashes and a command"},
		{"--reset true --watch totals --freeze-after 1s --lock-ends-after 1s -- true", "are for --explore"},
		{"--explore --watch totals --end-lock true -- true", "--reset is missing"},
		{"--explore --watch totals --reset true -- true", "--end-lock is missing"},
		{"--explore --watch totals --reset true --end-lock true --freeze-after 1s -- true", "tries every moment"},
		{"--explore --watch totals --reset true --end-lock true --lock-key nightly --jobs 2 -- true", "one lock for all copies"},
		{"--explore --watch totals --reset false --end-lock true --control 100ms --yes -- true", "false: status 1"},
		{"--watch nothing --freeze-after 1s --lock-ends-after 1s --yes -- true", `relation "nothing" does not exist`},
		{"--watch seen --freeze-after 1s --lock-ends-after 1s --yes -- true", "public.seen can't be watched"},
		{"--watch totals --freeze-after 1s --lock-ends-after 1s --control 100ms --yes -- no-such-command", "command not found"},
		{"--watch totals --freeze-when SELECT(1) --lock-ends-after 1s --control 100ms --yes -- sleep 5", "is no boolean"},
		{"--watch totals --freeze-when SELEC --lock-ends-after 1s --control 100ms --yes -- sleep 5", "syntax error"},
	} {
		wirefence(t, p.settings, append([]string{"zombie"}, strings.Fields(c.flags)...)...).expect(t, exitUnknown, c.says)
		p.wantNothingLeft(t)
	}
}

// A pooler would keep the session with the slot.
func TestZombieThroughAPooler(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "PgBouncer")
	p := toPlay(t)
	cfg, err := pgx.ParseConfig(p.url)
	if err != nil {
		t.Fatal(err)
	}
	pooler := stack.Started(servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{
		Upstream: fmt.Sprintf("%s:%d", cfg.Host, cfg.Port), Clients: 10, PoolSize: 2, PoolMode: "transaction"})).EndWith(t)
	p.settings[0] = "WIREFENCE_DATABASE_URL=" + pooler.URL(cfg.Database)
	wirefence(t, p.settings, p.args(nightly)...).expect(t, exitUnknown, "a pooler stands before the database")
	p.wantNothingLeft(t)
}
