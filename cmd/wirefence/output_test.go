package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// The JSON of each command has the fields of docs/reference/cli.md.
func TestOutputsAreAsDocumented(t *testing.T) {
	t.Parallel()
	bare := database(t, false)
	run := func(url string, args ...string) string {
		t.Helper()
		return wirefence(t, issuer(url), append(args, "-o", "json")...).expect(t, 0).stdout
	}
	dry := run(bare, "migrate", "--dry-run")
	documented(t, "wirefence migrate", 0, dry)
	migrated := run(bare, "migrate")
	documented(t, "wirefence migrate", 0, migrated)
	again := run(bare, "migrate")
	var first, second, planned migratedJSON
	for text, into := range map[string]*migratedJSON{dry: &planned, migrated: &first, again: &second} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	if planned.Before != 0 || !planned.DryRun || !strings.Contains(planned.SQL, "CREATE FUNCTION wirefence.") || first.Before != 0 || first.DryRun ||
		len(first.Steps) == 0 || first.SQL != "" || second.Before != first.After {
		t.Errorf("planned %+v, done %+v, then %+v", planned, first, second)
	}

	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B')", "SELECT wirefence.check('other=7')", "CREATE TABLE t (id int)", "CREATE TABLE queue (id int PRIMARY KEY, claim bigint)")
	documented(t, "wirefence version", 0, run(url, "version"))
	documented(t, "wirefence protect", 0, run(url, "protect", "t", "--resource", "orders", "--shadow"))
	documented(t, "wirefence status", 0, run(url, "status"))
	documented(t, "wirefence status", 1, run(url, "status", "--guards"))
	documented(t, "wirefence rows declare", 0, run(url, "rows", "declare", "job", "--table", "queue", "--key", "id", "--claim", "claim", "--while", "claim > 0"))
	documented(t, "wirefence rows list", 0, run(url, "rows", "list"))
	documented(t, "wirefence status", 2, run(url, "status", "--rows"))
	documented(t, "wirefence rows drop", 0, run(url, "rows", "drop", "job"))
	documented(t, "wirefence resource declare", 0, run(url, "resource", "declare", "new", "--reason", "x"))
	documented(t, "wirefence resource set", 0, run(url, "resource", "set", "new", "--reuse", "once", "--reason", "x"))
	documented(t, "wirefence resource set", 0, run(url, "resource", "set", "--undeclared", "refuse", "--reason", "x"))
	documented(t, "wirefence carry-name", 0, run(url, "carry-name", "on", "--reason", "x"))
	documented(t, "wirefence resource show", 0, run(url, "resource", "show", "new"))
	documented(t, "wirefence resource list", 0, run(url, "resource", "list"))
	documented(t, "wirefence revoke", 0, run(url, "revoke", "orders", "--reason", "it hangs"))
	documented(t, "wirefence history", 0, run(url, "history"))
	documented(t, "wirefence unprotect", 0, run(url, "unprotect", "t"))
	documented(t, "wirefence doctor", 0, wirefence(t, issuer(url), "doctor", "-o", "json").stdout)
	r := wirefence(t, []string{"WIREFENCE_ADMIN_LISTEN=127.0.0.1:1"}, "status", "--ready", "-o", "json").expect(t, 1)
	documented(t, "wirefence status", 3, r.stdout)
	if r.stderr != "" || !strings.Contains(r.stdout, `"reason": "the proxy's probes don't answer`) {
		t.Errorf("got %s and %s", r.stdout, r.stderr)
	}
}

func TestStatusOfOneResource(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.check('orders=7,other=8')")
	if r := wirefence(t, issuer(url), "status", "orders").expect(t, 0).says(t, "RESOURCE", "orders"); strings.Contains(r.stdout, "other") {
		t.Errorf("got\n%s", r.stdout)
	}
	if r := wirefence(t, issuer(url), "status", "orders", "-o", "json").expect(t, 0); strings.Count(r.stdout, `"resource"`) != 1 || r.stdout[0] != '[' {
		t.Errorf("got\n%s", r.stdout)
	}
	wirefence(t, issuer(url), "status", "nothing").expect(t, 1, "unknown fenced resource", "WF008")
	wirefence(t, issuer(url), "status", strings.Repeat("z", 256)).expect(t, 2, "256 bytes")
}

// A connection string may be in a file. What contradicts itself, or can't be read, is said,
// and no password is.
func TestSettingsInFiles(t *testing.T) {
	t.Parallel()
	url, dir := database(t, true), t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, windows, bad := file("good", url+"\n"), file("windows", url+"\r\n"), "postgres://u:geheim@127.0.0.1:1/x"
	empty, two := file("empty", "\n"), file("two", bad+"\n"+bad+"\n")
	const variable, fileVariable = "WIREFENCE_DATABASE_URL=", "WIREFENCE_DATABASE_URL_FILE="
	for _, c := range []struct {
		name     string
		settings []string
		flags    []string
		status   int
		says     string
	}{
		{"variable", []string{fileVariable + good}, nil, 0, ""},
		{"flag", nil, []string{"--database-url-file", good}, 0, ""},
		{"line end of Windows", []string{fileVariable + windows}, nil, 0, ""},
		{"flag's file over the variable", []string{variable + bad}, []string{"--database-url-file=" + good}, 0, ""},
		{"flag over the variable's file", []string{fileVariable + empty}, []string{"--database-url=" + url}, 0, ""},
		{"flag's file over the variable's", []string{fileVariable + empty}, []string{"--database-url-file=" + good}, 0, ""},
		{"an empty variable is none", []string{variable, fileVariable + good}, nil, 0, ""},
		{"both variables", []string{variable + bad, fileVariable + good}, nil, 2, "WIREFENCE_DATABASE_URL and WIREFENCE_DATABASE_URL_FILE are both set"},
		{"both flags", nil, []string{"--database-url=" + bad, "--database-url-file=" + good}, 2, "--database-url and --database-url-file are both given"},
		{"no file", []string{fileVariable + dir + "/none"}, nil, 2, "WIREFENCE_DATABASE_URL_FILE: open " + dir + "/none: no such file"},
		{"no file of the flag", nil, []string{"--database-url-file=" + dir + "/none"}, 2, "--database-url-file: open " + dir + "/none: no such file"},
		{"a folder", []string{fileVariable + dir}, nil, 2, "is a directory"},
		{"empty", []string{fileVariable + empty}, nil, 2, empty + " is empty"},
		{"a password alone", []string{fileVariable + file("password", "geheim\n")}, nil, 2, "is no connection string"},
		{"a file without an end", []string{fileVariable + "/dev/zero"}, nil, 2, "/dev/zero has more than 65536 bytes"},
		{"two lines", []string{fileVariable + two}, nil, 2, two + " has more than one line"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := wirefence(t, c.settings, append([]string{"status"}, c.flags...)...).expect(t, c.status, c.says)
			if strings.Contains(r.stderr+r.stdout, "geheim") {
				t.Errorf("the password is shown: %s", r.stderr)
			}
		})
	}
}

// A named pipe is read when somebody writes to it. Until then a signal ends the wait.
func TestSecretInANamedPipe(t *testing.T) {
	t.Parallel()
	url, pipe := database(t, true), filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	waiting := start(t, []string{"WIREFENCE_DATABASE_URL_FILE=" + pipe}, "status")
	// Open returns when it is read.
	file, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	waiting.signal(t, syscall.SIGTERM)
	waiting.end(t).expect(t, 2, "WIREFENCE_DATABASE_URL_FILE: read "+pipe)
	_ = file.Close()
	served := start(t, []string{"WIREFENCE_DATABASE_URL_FILE=" + pipe}, "status")
	if err := os.WriteFile(pipe, []byte(url+"\n"), 0); err != nil {
		t.Fatal(err)
	}
	served.end(t).expect(t, 0)
}
