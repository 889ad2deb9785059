package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/internal/zombie"
)

const (
	resetAll = `psql -Xqc "TRUNCATE runs, totals; INSERT INTO totals VALUES ('2026-11-23', 0, 'nobody'); UPDATE locks SET until = now()"`
	endLock  = `psql -Xqc "UPDATE locks SET until = now()"`
	// take takes the lock for a minute, or ends the job with status 75; free gives it back.
	take = `got=$(psql -XAtqc "UPDATE locks SET owner = '$$', until = now() + '1 min' WHERE until <= now() RETURNING 1")
		[ "$got" ] || exit 75
		`
	free = `
		psql -Xqc "UPDATE locks SET until = now() WHERE owner = '$$'"`
	readN    = `n=$(psql -XAtqc "SELECT n + 1 FROM totals"); `
	writeN   = `psql -Xqc "UPDATE totals SET n = $n, by = '$$'"`
	atomicly = `psql -Xqc "BEGIN" -c "SELECT n FROM totals FOR UPDATE" -c "UPDATE totals SET n = n + 1, by = '$$'" -c "COMMIT" >/dev/null`
)

// toExplore is a database with a lock that is a row: its owner, and when it runs out.
func toExplore(t *testing.T) *played {
	p := toPlay(t)
	stack.Exec(t, p.url, "CREATE TABLE locks (name text PRIMARY KEY, owner text, until timestamptz)", "INSERT INTO locks VALUES ('nightly', 'nobody', now())")
	return p
}

// explore explores a job, and returns what is printed as JSON.
func (p *played) explore(t *testing.T, status int, job []string, flags ...string) (r zombie.Exploration) {
	t.Helper()
	args := append([]string{"zombie", "--explore", "--watch", "totals", "--control", "100ms", "--within", "1m", "--term-grace", "1s", "--yes", "-o", "json"}, flags...)
	if !slices.Contains(flags, "--reset") {
		args = append(args, "--reset", resetAll)
	}
	if !slices.Contains(flags, "--end-lock") && !slices.Contains(flags, "--lock-ends-after") {
		args = append(args, "--end-lock", endLock)
	}
	cmd := command(t.Context(), p.settings, append(append(args, "--"), job...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	got := result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}.expect(t, status)
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatalf("%v:\n%s%s", err, got.stdout, got.stderr)
	}
	var text strings.Builder
	_ = printExploration(&text, &r)
	t.Logf("%s\n%s", text.String(), got.stderr)
	p.wantNothingLeft(t)
	return r
}

func shell(script string) []string { return []string{"sh", "-c", "set -e\n" + script} }

// windows are what is shown, in order.
func windows(r zombie.Exploration) string {
	var all []string
	for _, w := range r.Windows {
		all = append(all, string(w.Shows))
	}
	return strings.Join(all, ", ")
}

// Each job is explored without a word of its moments. The right ones are never accused. In short
// runs there are few jobs.
func TestExplore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script  string
		status  int
		windows string
		says    string // in the report
	}{
		"waits for its lock": {`until ( ` + take + ` ); do sleep 0.1; done; ` + readN + writeN + `; psql -Xqc "UPDATE locks SET until = now()"`, exitStale, "no lock, same, stale, none", ""},
		"insert if none":     {take + `if [ "$(psql -XAtqc "SELECT count(*) FROM totals")" = 1 ]; then psql -Xqc "INSERT INTO totals VALUES (date '2026-11-23' + $$, 1, 'job')"; fi` + free, exitStale, "no lock, none, stale, idle", ""},
		"no lock":            {readN + writeN, exitStale, "same, stale", "no lock kept a second run out at any moment"},
		"reads too early":    {readN + take + writeN + free, exitStale, "no lock, stale, none", ""},
		"checked":            {take + readN + `psql -Xqc "WITH mine AS (SELECT FROM locks WHERE owner = '$$' AND until > now() FOR UPDATE) UPDATE totals SET n = $n, by = '$$' WHERE EXISTS (SELECT FROM mine)"` + free, 0, "no lock, none", ""},
		"versioned":          {take + readN + `psql -Xqc "UPDATE totals SET n = $n, by = '$$' WHERE n = $n - 1"` + free, 0, "no lock, same, none", ""},
		"idempotent":         {take + `psql -Xqc "UPDATE totals SET n = 7, by = '$$'"` + free, 0, "no lock, same, none", "wrote the same values"},
		"one transaction":    {take + atomicly + free, 0, "no lock, same, held, none", ""},
		// As ShedLock's provider for JDBC takes its lock. --end-lock waits for it, too.
		"lock in a transaction": {`got=$(psql -XAtqc "BEGIN" -c "UPDATE locks SET owner = '$$', until = now() + '1 min' WHERE until <= now() RETURNING 1" -c "COMMIT"); [ "$got" ] || exit 75; ` + readN + writeN + free, exitStale, "no lock, held, same, stale, none", "waits for a lock of process"},
		"a transaction alone":   {atomicly, 0, "same, held", ""},
		"done once":             {take + `psql -Xqc "UPDATE totals SET n = 1 WHERE n = 0"` + free, 0, "no lock, none, idle", ""},
		"flock":                 {`exec 9>"$TMPDIR/lock"; flock -n 9; ` + readN + writeN, exitUnknown, "unknown", "the second run failed"},
		// It tries again more slowly than patience lasts, and then does all in one transaction.
		"waits slowly": {`until ( ` + take + ` ); do sleep 4; done
			printf 'BEGIN;\nINSERT INTO runs VALUES (%s);\nSELECT n + 1 AS n FROM totals \\gset\nUPDATE totals SET n = :n, by = %s;\nCOMMIT;\n' "'$$'" "'$$'" | psql -Xq` + free, exitStale, "no lock, same, stale, held, none", ""},
		// The server has the UPDATE wait for the COMMIT, so that they have one order only.
		"waits for another connection": {take + `psql -Xqc BEGIN -c "SELECT n FROM totals FOR UPDATE" -c "UPDATE totals SET n = n + 1" -c "SELECT pg_sleep(1.5); COMMIT" >/dev/null &
			sleep 0.5; psql -Xqc "UPDATE totals SET by = 'touched'"; wait` + free, 0, "no lock, same, held, same, none", ""},
	} {
		if testing.Short() && !slices.Contains([]string{"no lock", "one transaction"}, name) {
			continue
		}
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			p := toExplore(t)
			times := 1
			if c.status == 0 && !testing.Short() {
				times = 3
			}
			for range times {
				r := p.explore(t, c.status, shell(c.script))
				if got := windows(r); got != c.windows {
					t.Errorf("%s, not %s", got, c.windows)
				}
				if text, _ := json.Marshal(r); !strings.Contains(string(text), c.says) {
					t.Errorf("%q is missing in %s", c.says, text)
				}
				if (r.Schedule != nil) != (c.status == exitStale) {
					t.Errorf("%+v", r.Schedule)
				}
			}
		})
	}
}

// Moments that are played at once, in copies of the database, show the same as one after the other in
// the database itself, which stays as it is. No copy is left, nor one of an exploration that was killed.
func TestExploreInCopies(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "half a minute")
	for name, c := range map[string]struct {
		script  string
		status  int
		windows string
	}{
		"overwrites":      {take + readN + writeN + free, exitStale, "no lock, same, stale, none"},
		"one transaction": {take + atomicly + free, 0, "no lock, same, held, none"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			p := toExplore(t)
			stack.Exec(t, p.url, "UPDATE totals SET n = 7")
			var copied string
			one := stack.Connect(t, p.url)
			if err := one.QueryRow(t.Context(), "SELECT 'wirefence_zombie_' || oid || '_' FROM pg_database WHERE datname = current_database()").Scan(&copied); err != nil {
				t.Fatal(err)
			}
			stack.MustExec(t, one, "CREATE DATABASE "+copied+"1")
			_ = one.Close(t.Context())
			r := p.explore(t, c.status, shell(c.script), "--jobs", "3")
			if got := windows(r); got != c.windows {
				t.Errorf("%s, not %s", got, c.windows)
			}
			becomes(t, p.url, "7, 0 copies", "SELECT n || ', ' || (SELECT count(*) FROM pg_database WHERE starts_with(datname, '"+copied+"')) || ' copies' FROM totals")
			if again := p.explore(t, c.status, shell(c.script)); !slices.EqualFunc(r.Windows, again.Windows, func(a, b zombie.Window) bool {
				return a.Shows == b.Shows && a.From == b.From && a.To == b.To && a.Tried == b.Tried
			}) {
				t.Errorf("%+v\none after the other: %+v", r.Windows, again.Windows)
			}
		})
	}
}

// What can't be explored is said, with status 2.
func TestExploreCannotJudge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script, says string
		flags        []string
	}{
		"fails by itself":  {"psql -Xqc 'UPDATE totals SET n = 1'; exit 3", "undisturbed, the first run fails, with status 3", nil},
		"changes nothing":  {"psql -Xqc 'SELECT 1'", "changes nothing in the tables", nil},
		"sends nothing":    {"true", "sent nothing through this proxy", nil},
		"one lock for all": {`exec 9>"$TMPDIR/lock"; flock -n 9; sleep 2; ` + readN + writeN, "--jobs must be 1", []string{"--jobs", "2"}},
		"no copy":          {"psql -Xqd template1 -c 'SELECT 1' || exit 4; " + readN + writeN, "with status 4", []string{"--jobs", "2"}},
		"no reset":         {"psql -Xqc 'UPDATE totals SET n = n + 1'", "--reset doesn't put public.totals back", []string{"--reset", "true"}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			p := toExplore(t)
			junit := filepath.Join(t.TempDir(), "junit.xml")
			r := p.explore(t, exitUnknown, shell(c.script), append(c.flags, "--junit", junit)...)
			wantJUnit(t, junit, `tests="1" failures="0" errors="1"`, `name="all moments"`, c.says)
			if r.Verdict != zombie.Unknown || !strings.Contains(r.Reason, c.says) {
				t.Errorf("%+v", r)
			}
		})
	}
}

// wantJUnit looks for texts in a file of JUnit's XML.
func wantJUnit(t *testing.T, file string, want ...string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	told := html.UnescapeString(string(text))
	for _, what := range want {
		if !strings.Contains(told, what) {
			t.Errorf("%s is missing in\n%s", what, told)
		}
	}
}

func TestExploreIsEndedWithAllThatItStarted(t *testing.T) {
	t.Parallel()
	for signal, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		p := toExplore(t)
		r := start(t, p.settings, "zombie", "--explore", "--watch", "totals", "--jobs", "2", "--control", "100ms", "--yes", "--reset", resetAll, "--end-lock", endLock, "--", "sh", "-c", readN+writeN)
		r.stderr.Await(t, "moments tried")
		r.signal(t, signal)
		r.end(t).expect(t, status, "interrupted")
		p.wantNothingLeft(t)
		becomes(t, p.url, "0", "SELECT count(*)::text FROM pg_database WHERE datname LIKE 'wirefence_zombie_' || (SELECT oid FROM pg_database WHERE datname = current_database()) || '%'")
		if left, _ := filepath.Glob(filepath.Join(p.dir, "wirefence-*")); len(left) > 0 {
			t.Errorf("%s is left", left)
		}
	}
}

// A counter that is read, and then written, is explored. The script leads to the same end without
// Wirefence, and the page, which names no other file, tells it.
func TestExploreWritesTheSchedule(t *testing.T) {
	stack.NeedsMore(t, "4 s of CPU")
	t.Parallel()
	p := toExplore(t)
	script, page := filepath.Join(t.TempDir(), "it's stale.sh"), filepath.Join(t.TempDir(), "stale.html")
	junit := filepath.Join(t.TempDir(), "junit.xml")
	r := p.explore(t, exitStale, shell(take+readN+writeN+free), "--minimal", script, "--page", page, "--junit", junit)
	wantJUnit(t, junit, `tests="4" failures="1" errors="0"`, `name="from SELECT n + ? FROM totals to before UPDATE totals SET n = ?, by = ?">`, "*** goes on")
	told, err := os.ReadFile(page)
	if err != nil || strings.Contains(string(told), "src=") || strings.Contains(string(told), "href=") {
		t.Errorf("%v\n%s", err, told)
	}
	for _, want := range []string{`<tr class="frozen"><td>`, "<td>*** goes on</td>", "<td>SELECT n &#43; 1 FROM totals  -&gt; SELECT 1</td>", `<span class="frozen" title="frozen" style="left: `} {
		if !strings.Contains(string(told), want) {
			t.Errorf("the page doesn't have %s\n%s", want, told)
		}
	}
	if got := windows(r); got != "no lock, same, stale, none" {
		t.Error(got)
	}
	stack.Exec(t, p.url, "TRUNCATE totals")
	cmd := exec.CommandContext(t.Context(), "bash", script)
	cmd.Env = append(os.Environ(), p.settings...)
	out, err := cmd.CombinedOutput()
	write := r.Schedule.Writes[0]
	if want := "2026-11-23 | 1 | " + *write.After["by"]; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, %s\nnot %s", err, out, want)
	}
}
