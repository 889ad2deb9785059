package drivertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// startPgbench runs pgbench's built-in scripts and our own. It reports errors by
// text alone.
func startPgbench(t *testing.T, _ []string) runner {
	t.Helper()
	dir := t.TempDir()
	return func(t *testing.T, w way) (lines []string) {
		t.Helper()
		bench := func(kind, name string, args ...string) {
			cmd := exec.CommandContext(t.Context(), "pgbench", args...)
			cmd.Env = clientEnv(w)
			out, err := cmd.CombinedOutput()
			result := "done"
			switch {
			case strings.Contains(string(out), "stale fencing token"):
				result = "error WF001"
			case err != nil:
				result = fmt.Sprintf("error %v: %s", err, out)
			case kind != unmarked && !strings.Contains(string(out), "actually processed: 20/20"):
				result = string(out)
			}
			lines = append(lines, fmt.Sprintf("%s %s: %s", kind, name, result))
		}
		if w.name == "direct" {
			w.rig.exec(t, "DROP TABLE IF EXISTS pgbench_accounts, pgbench_branches, pgbench_history, pgbench_tellers")
		}
		bench(unmarked, "initialize", "-i", "-I", "dtgp", "-q", "-s", "1")
		for _, mode := range []string{"simple", "extended", "prepared"} {
			args := []string{"-n", "-c", "2", "-j", "2", "-t", "10", "-M", mode}
			before := w.rig.rows(t, "pgbench_history")
			bench(unmarked, mode+" / tpcb-like", append(args, "-b", "tpcb-like")...)
			bench(unmarked, mode+" / simple-update", append(args, "-b", "simple-update")...)
			bench(reads, mode+" / select-only", append(args, "-b", "select-only")...)
			if n := w.rig.rows(t, "pgbench_history") - before; n != 0 && w.stale() && w.carrier == byOptions {
				t.Errorf("%s: pgbench wrote %d rows", w.name, n)
			}
			for _, script := range []string{"transactions", "statements", "pipelines"} {
				if script == "pipelines" && mode == "simple" {
					continue // there are none of simple queries
				}
				bench(writes, mode+" / "+script, append(args, "-f", marked(t, dir, script, w))...)
			}
		}
		bench(reads, "alive", "-n", "-t", "20", "-b", "select-only")
		return lines
	}
}

// marked returns a script of ours with the way's comment in each statement.
func marked(t *testing.T, dir, script string, w way) string {
	t.Helper()
	text, err := os.ReadFile("testdata/pgbench/" + script + ".sql")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, script+".sql")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), ";", w.comment()+";")), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}
