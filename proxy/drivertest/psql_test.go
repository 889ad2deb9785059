package drivertest

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// psql returns the command, its error output with its output.
func (r *rig) psql(t *testing.T, addr, options string, args ...string) *exec.Cmd {
	t.Helper()
	needCommand(t, "psql")
	cmd := exec.CommandContext(t.Context(), "psql", append([]string{"-X", "-h", "127.0.0.1", "-p", stack.Port(addr), "-U", "postgres", "-d", r.db}, args...)...)
	cmd.Env = append(os.Environ(), "PGOPTIONS="+options, "LC_ALL=C.UTF-8", "PGSSLMODE=disable")
	return cmd
}

// volatile is what differs from session to session in psql's output.
var volatile = regexp.MustCompile(`process with PID \d+|port "\d+"|at port \d+`)

func (r *rig) script(t *testing.T, addr, options string) string {
	t.Helper()
	r.exec(t, "TRUNCATE t")
	cmd := r.psql(t, addr, options, "-f", "-")
	script, err := os.ReadFile("testdata/psql.sql")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = bytes.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	return volatile.ReplaceAllString(string(out), "…")
}

func TestPsql(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		want := r.script(t, r.Addr(), "")
		if n := r.rows(t); n != 13 || strings.Contains(want, "true error") {
			t.Fatalf("direct: %d rows, and\n%s", n, want)
		}
		for name, options := range map[string]string{"unfenced": "", "current": current} {
			if got := r.script(t, r.proxy, options); got != want {
				t.Errorf("%s\n got: %s\nwant: %s", name, got, want)
			}
		}
		got := r.script(t, r.proxy, stale)
		refused := 0
		for line := range strings.Lines(got) {
			if strings.HasPrefix(line, "W ") {
				refused++
				if !strings.HasSuffix(line, "true error WF001\n") {
					t.Errorf("stale: %s", line)
				}
			}
		}
		if refused != strings.Count(want, "\nW ") || r.rows(t) != 0 {
			t.Errorf("stale: %d refusals and %d rows\n%s", refused, r.rows(t), got)
		}
		for _, part := range []string{
			`ERROR:  stale fencing token for resource "orders"`, `DETAIL:  Resource "orders": presented token 33, current token 34, held by "holder" since `, "HINT:  ",
		} {
			if !strings.Contains(got, part) {
				t.Errorf("stale: psql doesn't show %q", part)
			}
		}
	})
}

// Ctrl-C in psql cancels the query and nothing else.
func TestPsqlCancel(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		for _, options := range []string{"", current} {
			cmd := r.psql(t, r.proxy, options, "-f", "-")
			cmd.Stdin = strings.NewReader("SELECT pg_sleep(60);\n\\echo :SQLSTATE\nSELECT 'alive';\n")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			r.asleep(t)
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if !strings.Contains(out.String(), "canceling statement due to user request") {
				t.Errorf("with %q psql says\n%s", options, out.String())
			}
		}
	})
}

// The fence of a comment in a psql script.
func TestPsqlComments(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		out, err := r.psql(t, r.proxy, "", "-v", "ON_ERROR_STOP=1", "-c", "INSERT INTO t VALUES (1, 'a') /*wirefence.token='orders=34'*/").CombinedOutput()
		if err != nil {
			t.Errorf("current: %v\n%s", err, out)
		}
		out, err = r.psql(t, r.proxy, "", "-v", "VERBOSITY=verbose", "-c", "INSERT INTO t VALUES (2, 'a') -- wirefence.token='orders%3D33'").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "ERROR:  WF001: stale") {
			t.Errorf("stale: %v\n%s", err, out)
		}
		if n := r.rows(t); n != 1 {
			t.Errorf("%d rows", n)
		}
	})
}

const pipelines = `\set id random(1, 1000000000)
\startpipeline
INSERT INTO t VALUES (:id, 'first') ON CONFLICT DO NOTHING;
SELECT 1;
INSERT INTO t VALUES (:id + 1, 'second') ON CONFLICT DO NOTHING;
\endpipeline
\startpipeline
BEGIN;
UPDATE t SET v = 'third' WHERE id = :id;
COMMIT;
\endpipeline
`

func TestPgbench(t *testing.T) {
	needCommand(t, "pgbench")
	rigs(t, func(t *testing.T, r *rig) {
		file := t.TempDir() + "/pipelines.sql"
		if err := os.WriteFile(file, []byte(pipelines), 0o644); err != nil {
			t.Fatal(err)
		}
		bench := func(addr, options string, args ...string) (string, error) {
			cmd := exec.CommandContext(t.Context(), "pgbench", append([]string{"-h", "127.0.0.1", "-p", stack.Port(addr), "-U", "postgres"}, append(args, r.db)...)...)
			cmd.Env = append(os.Environ(), "PGOPTIONS="+options, "LC_ALL=C", "PGSSLMODE=disable")
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		for _, options := range []string{"", current} {
			if out, err := bench(r.proxy, options, "-i", "-q", "-s", "1"); err != nil {
				t.Fatalf("pgbench -i with %q: %v\n%s", options, err, out)
			}
		}
		if out, err := bench(r.proxy, stale, "-i", "-q", "-s", "1"); err == nil || !strings.Contains(out, "stale fencing token") {
			t.Errorf("pgbench -i with a stale token: %v\n%s", err, out)
		}
		history := func() (n int) {
			if err := r.admin.QueryRow(t.Context(), "SELECT count(*) FROM pgbench_history").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		for _, mode := range []string{"simple", "extended", "prepared"} {
			for _, script := range [][]string{{"-b", "tpcb-like"}, {"-b", "simple-update"}, {"-b", "select-only"}, {"-f", file}} {
				if mode == "simple" && script[1] == file {
					continue // there are no pipelines of simple queries
				}
				args := append([]string{"-n", "-c", "4", "-j", "2", "-t", "25", "-M", mode}, script...)
				for _, options := range []string{"", current} {
					before := history()
					out, err := bench(r.proxy, options, args...)
					if err != nil || !strings.Contains(out, "number of transactions actually processed: 100/100") {
						t.Errorf("pgbench %v with %q: %v\n%s", args, options, err, out)
					}
					if strings.Contains(script[1], "tpcb") && history()-before != 100 {
						t.Errorf("pgbench %v with %q left %d rows", args, options, history()-before)
					}
				}
				before, rows := history(), r.rows(t)
				out, err := bench(r.proxy, stale, args...)
				if reads := script[1] == "select-only"; reads != (err == nil) || reads == strings.Contains(out, "stale fencing token") {
					t.Errorf("pgbench %v with a stale token: %v\n%s", args, err, out)
				}
				if history() != before || r.rows(t) != rows {
					t.Errorf("pgbench %v with a stale token wrote %s rows", args, strconv.Itoa(history()-before+r.rows(t)-rows))
				}
			}
		}
	})
}
