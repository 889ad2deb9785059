package drivertest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// clientEnv is what libpq's own programs get for a way.
func clientEnv(w way) []string {
	env := append(os.Environ(), environment(w.rig.root)...)
	env = append(env, "PGPORT="+w.port, "PGDATABASE="+w.rig.db, "PGOPTIONS="+w.options())
	return append(env, w.sec.libpq(w.rig.root)...)
}

// volatile is what differs from session to session in psql's output.
var volatile = regexp.MustCompile(`process with PID \d+|port "\d+"|at port \d+|"driver\d+_\w+"`)

// quoted is the end of a line that psql quotes from a statement.
var quoted = regexp.MustCompile(`(?m)^(LINE 1: .*?) *(/\*wirefence.*|;)$`)

// startPsql runs a script: psql reads its connection from the environment.
func startPsql(*testing.T, []string) runner {
	return func(t *testing.T, w way) []string {
		t.Helper()
		script, err := os.ReadFile("testdata/psql/script.sql")
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "psql", "-X", "-v", "set="+w.set(), "-v", "comment="+w.comment(), "-f", "-")
		cmd.Env, cmd.Stdin = clientEnv(w), bytes.NewReader(script)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("psql, %s: %v\n%s", w.name, err, out)
		}
		if w.stale() && !detailed.Match(out) {
			t.Errorf("%s: psql doesn't show all of a refusal:\n%s", w.name, out)
		}
		return append(interrupted(t, w), psqlLines(w, quoted.ReplaceAllString(volatile.ReplaceAllString(string(out), "…"), "$1"))...)
	}
}

var detailed = regexp.MustCompile(`ERROR:  stale fencing token for resource "orders"
DETAIL:  Resource "orders": presented token 33, current token 34, granted to "holder" at .*
HINT:  `)

// psqlLines returns the lines that the script prints. What psql prints between
// them is part of the next one, unless that is a refusal.
func psqlLines(w way, out string) (lines []string) {
	var before strings.Builder
	for line := range strings.Lines(strings.ReplaceAll(out, "error 00000", "succeeded")) {
		if len(line) < 2 || line[1] != ' ' || !strings.Contains(letters, line[:1]) {
			before.WriteString(strings.ReplaceAll(line, "\n", `\n`))
			continue
		}
		line = strings.TrimSuffix(line, "\n")
		if !w.stale() || line[:1] == reads {
			line += " " + before.String()
		}
		before.Reset()
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

// interrupted presses Ctrl-C in psql, which cancels the query. A stale one is refused
// at once.
func interrupted(t *testing.T, w way) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-c", w.set(), "-c", "SELECT pg_sleep(60)"+w.comment())
	cmd.Env = clientEnv(w)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !w.stale() {
		w.asleep(t)
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	return []string{fmt.Sprintf("%s interrupted: %q", reads, out.String())}
}
