package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// completed returns what a shell would offer, and how it goes on.
func completed(t *testing.T, settings []string, args ...string) (offers []string, directive string) {
	t.Helper()
	r := wirefence(t, settings, append([]string{"__complete"}, args...)...).expect(t, 0)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	for _, line := range lines[:len(lines)-1] {
		name, _, _ := strings.Cut(line, "\t")
		offers = append(offers, name)
	}
	return offers, lines[len(lines)-1]
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B')", "SELECT wirefence.check('other=7,jobs=1')", `SELECT wirefence.check('a%0Ab=1')`,
		"CREATE TABLE t (id int)", "SELECT wirefence.protect('t', 'orders')",
		"CREATE TABLE queue (id int PRIMARY KEY, claim bigint)", "SELECT wirefence.declare_rows('job', 'queue', '{id}', 'claim', 'claim > 0')")
	here, away := issuer(url), issuer("postgres://127.0.0.1:1/x")
	const noFiles, files, goOn = ":4", ":0", ":6"
	for _, c := range []struct {
		settings  []string
		args      string
		want      string
		directive string
	}{
		{here, "status o", "orders other", noFiles},
		{here, "revoke |", "jobs orders other", noFiles},
		{here, "lock j", "jobs", noFiles},
		{here, "lock orders -- |", "", files},
		{here, "guard |", "", noFiles},
		{here, "guard -- |", "", files},
		{here, "guard orders=34 -- |", "", files},
		{here, "zombie --watch |", "", noFiles},
		{here, "zombie -- |", "", files},
		{here, "check |", "", noFiles},
		{here, "revoke orders |", "", noFiles},
		{here, "resource show or", "orders", noFiles},
		{here, "protect t --resource j", "jobs", noFiles},
		{here, "unprotect |", "public.t", noFiles},
		{here, "rows drop |", "job", noFiles},
		{here, "rows drop job |", "", noFiles},
		{[]string{"WIREFENCE_OWNER_URL=" + url}, "unprotect |", "public.t", noFiles},
		{nil, "status --database-url=" + url + " j", "jobs", noFiles},
		{nil, "status |", "", noFiles},
		{away, "status |", "", noFiles},
		{append(away, "WIREFENCE_DATABASE_URL_FILE=/x"), "status |", "", noFiles},
		{nil, "proxy --mode |", "enforce shadow off", noFiles},
		{nil, "status -o |", "text json", noFiles},
		{nil, "history --kind ref", "refusal", goOn},
		{nil, "history --kind refusal,sh", "refusal,shadow", goOn},
		{nil, "proxy --auth-file |", "", files},
		{nil, "proxy --database-url-file |", "", files},
		{nil, "proxy --listen |", "", noFiles},
		{nil, "resource set --must-name-source |", "true false", noFiles},
		{nil, "migrate |", "", noFiles},
		{nil, "completion |", "bash zsh fish powershell", noFiles},
	} {
		args := strings.Fields(c.args)
		if last := len(args) - 1; args[last] == "|" { // a new word
			args[last] = ""
		}
		offers, directive := completed(t, c.settings, args...)
		if got := strings.Join(offers, " "); got != c.want || directive != c.directive {
			t.Errorf("%q: offered %q with %s, not %q with %s", c.args, got, directive, c.want, c.directive)
		}
	}
}

// Shells take the scripts, where they are installed.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r := wirefence(t, []string{"WIREFENCE_MOOD=x"}, "completion", shell).expect(t, 0).says(t, "wirefence")
		if shell == "bash" {
			check := exec.Command("bash", "-n")
			check.Stdin = strings.NewReader(r.stdout)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
	}
	wirefence(t, nil, "completion").expect(t, exitUsage, "one shell")
	wirefence(t, nil, "completion", "tcsh").expect(t, exitUsage, `no completion for "tcsh"`)
}
