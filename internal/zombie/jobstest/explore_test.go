package jobstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/internal/zombie"
)

const (
	resetTotals = `psql -Xqd {url} -c "SET session_replication_role = replica" -c "TRUNCATE runs" -c "UPDATE totals SET orders = 1, by = 'nobody'"`
	cut         = `psql -XAtqd {url} -c "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"`
	flushRedis  = "redis-cli -p {port} FLUSHALL"
	revoke      = "{wirefence} revoke nightly || true"
)

// inCopies has moments played in copies of the database, at once.
var inCopies = []string{"--jobs", strconv.Itoa(runtime.NumCPU())}

// explored is what `wirefence zombie --explore` prints.
type explored struct{ zombie.Exploration }

func (e explored) shows() (all []string) {
	for _, w := range e.Windows {
		all = append(all, string(w.Shows))
	}
	return all
}

// explore explores a job, which writes to totals or what flags say, without a word of its moments.
func (w *world) explore(t *testing.T, status int, flags, job []string) (e explored) {
	t.Helper()
	args := []string{"zombie", "--explore", "--control", "1s", "--within", "1m", "--term-grace", "5s", "--yes", "-o", "json"}
	if !slices.Contains(flags, "--watch") {
		args = append(args, "--watch", "totals")
	}
	_ = w.Admin.Close(t.Context()) // a database with a session can't be copied
	var out, log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, w.words(append(append(args, flags...), append([]string{"--"}, job...)...)...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &log, w.env
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &e); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.ProcessState, err, log.String())
	}
	t.Logf("%s\n%s %s\n%+v", log.String(), e.Verdict, e.Reason, e.Windows)
	if got := cmd.ProcessState.ExitCode(); got != status {
		t.Errorf("status %d, not %d", got, status)
	}
	return e
}

// Jobs of several kinds are explored.
func TestExplore(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "psycopg2")
	twice := func(way string) []string { return []string{python, "testdata/twice.py", way} }
	for name, c := range map[string]struct {
		job, flags []string
		status     int
		windows    []string // that are among the others
	}{
		"demo": {[]string{"{wirefence}", "demo", "worker", `{"database":"{url}","redis":"{redis}","ttl":2000000000}`},
			[]string{"--lock-ends-after", "2500ms", "--watch", "orders", "--reset", `psql -Xqc "UPDATE orders SET status = 'new', written_by = NULL, token = NULL"`}, 1, []string{"no lock", "stale", "held"}},
		"psycopg2":                 {twice(""), []string{"--end-lock", cut, "--reset", resetTotals, "--minimal", "{dir}/minimal.sh"}, 1, []string{"no lock", "same", "stale", "held"}},
		"psycopg2 one transaction": {twice("one transaction"), []string{"--end-lock", cut, "--reset", resetTotals}, 0, []string{"no lock", "same", "held"}},
		"psycopg2 locked":          {twice(""), []string{"--end-lock", "true", "--reset", resetTotals}, 2, []string{"no lock", "unknown"}},
		"cron, Redis":              {[]string{python, "testdata/redislock.py", "sh", "testdata/nightly.sh"}, []string{"--end-lock", flushRedis, "--reset", resetTotals}, 0, []string{"same"}},
		"cron, guarded":            {append(slices.Clone(underLease), "sh", "testdata/nightly.sh"), []string{"--lock-ends-after", "4s", "--reset", resetTotals}, 0, []string{"none", "held"}},
	} {
		t.Run(strings.NewReplacer(" ", "_", ",", "").Replace(name), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			switch name {
			case "demo":
				w.Exec(t, "DROP TABLE orders", "CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL, written_by text, token bigint)", "INSERT INTO orders VALUES (1, 'new')")
			case "cron, guarded":
				w.guard(t, "app", "totals")
			}
			e := w.explore(t, c.status, c.flags, c.job)
			for _, want := range c.windows {
				if !slices.Contains(e.shows(), want) {
					t.Errorf("%q is missing in %q", want, e.shows())
				}
			}
			if name == "psycopg2" {
				cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(w.dir, "minimal.sh"))
				cmd.Env = w.env
				if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "|      2 | nobody") {
					t.Errorf("the script: %v, %s", err, out)
				}
			}
		})
	}
}
