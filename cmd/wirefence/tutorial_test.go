package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/pages"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// The commands that the tutorial may use: those that it says a reader needs, and of every
// Unix. python3 is Debian's, which has psycopg.
var tutorialTools = []string{"bash", "psql", "go", "python3", "mkdir", "sleep", "rm"}

// The tutorial is typed as its reader would, beside a fresh PostgreSQL, in an empty home,
// with an environment that holds nothing else: each command prints what the page shows.
func TestTheTutorial(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "Python's psycopg")
	page, err := os.ReadFile("../../docs/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := pages.Steps(string(page))
	if err != nil {
		t.Fatal(err)
	}
	refused := slices.IndexFunc(steps, pages.Step.ShowsRefusal)
	if refused < 0 {
		t.Fatal("the page shows no write that is refused")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	pg := stack.Started(servers.StartPostgres(ctx, servers.PostgresConfig{})).EndWith(t)
	ports := map[string]string{"5432": strconv.Itoa(pg.Port)}
	for _, standard := range []string{"6433", "9433"} {
		port, err := servers.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[standard] = strconv.Itoa(port)
	}
	walk := pages.Walk{
		Dir:     "../..",
		Replace: ports,
		Env: append(goCaches(t),
			"HOME="+t.TempDir(), "PATH="+toolsOnly(t, tutorialTools),
			"WIREFENCE_LISTEN=127.0.0.1:"+ports["6433"], "WIREFENCE_ADMIN_LISTEN=127.0.0.1:"+ports["9433"]),
	}
	began := time.Now() // with the build, which may have to compile everything
	built := began
	walk.Done = func(step pages.Step) {
		if strings.Contains(step.Input, "go build") {
			built = time.Now()
		}
		if step.Line == steps[refused].Line {
			t.Logf("a former holder's write was refused by command %d, %v after the build", refused+1, time.Since(built).Round(time.Second))
		}
	}
	if err := walk.Run(ctx, steps); err != nil {
		t.Error(err)
	}
	t.Logf("%d commands ran for %v", len(steps), time.Since(began).Round(time.Second))
	for _, tool := range tutorialTools[:4] {
		if !regexp.MustCompile("`" + tool + "`|\\bGo 1").Match(page) {
			t.Errorf("the page doesn't say that it needs %s", tool)
		}
	}
}

// toolsOnly returns a folder that holds these commands and no others.
func toolsOnly(t *testing.T, names []string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		file := "/usr/bin/" + name
		if _, err := os.Stat(file); err != nil {
			if file, err = exec.LookPath(name); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(file, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// goCaches has Go in an empty home build with what was built and fetched before.
func goCaches(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT", "GOCACHE", "GOMODCACHE").Output()
	values := strings.Fields(string(out))
	if err != nil || len(values) != 3 {
		t.Fatalf("go env says %q, %v", out, err)
	}
	return []string{"GOROOT=" + values[0], "GOCACHE=" + values[1], "GOMODCACHE=" + values[2], "GOTOOLCHAIN=local", "GOFLAGS=-buildvcs=false"}
}
