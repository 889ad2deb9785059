package suitetest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

// binaries is where Debian's packages of PostgreSQL 15 are.
const binaries = "/usr/lib/postgresql/15"

// regress runs PostgreSQL's regression tests one after another.
func regress(t *testing.T, w *way) map[string]string {
	source := filepath.Join(servers.CacheDir(), "suites", "regress")
	out := folder(t)
	compile := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-I/usr/include/postgresql/15/server", "-I"+source, "-o", filepath.Join(out, "regress.so"), filepath.Join(source, "regress.c"))
	if text, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s: run scripts/install-servers --all", err, text)
	}
	for _, library := range []string{"refint.so", "autoinc.so"} {
		if err := os.Symlink(filepath.Join(binaries, "lib", library), filepath.Join(out, library)); err != nil {
			t.Fatal(err)
		}
	}
	return pgRegress(t, w, out, "regress/pg_regress", "--inputdir="+source, "--dlpath="+out, "--schedule="+filepath.Join(source, "parallel_schedule"), "--max-connections=1")
}

// isolation runs PostgreSQL's tests of isolation.
func isolation(t *testing.T, w *way) map[string]string {
	source := filepath.Join(servers.CacheDir(), "suites", "isolation")
	return pgRegress(t, w, folder(t), "isolation/pg_isolation_regress", "--inputdir="+source, "--schedule="+filepath.Join(source, "isolation_schedule"))
}

// folder is one that the server may write to.
func folder(t *testing.T) string {
	t.Helper()
	out := t.TempDir()
	for _, name := range []string{".", "results", "testtablespace"} {
		path := filepath.Join(out, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(out), 0o755); err != nil {
		t.Fatal(err)
	}
	return out
}

// pgRegress returns what each test has printed. The tests are compared with a direct run's, and
// not with what the suite expects of some version of server and psql.
func pgRegress(t *testing.T, w *way, out, program string, args ...string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries, "lib/pgxs/src/test", program), append([]string{
		"--use-existing", "--host=127.0.0.1", "--port=" + w.port, "--user=postgres", "--dbname=" + database, "--outputdir=" + out, "--bindir=" + filepath.Join(binaries, "bin"),
	}, args...)...)
	cmd.Dir = out
	text, err := cmd.CombinedOutput()
	files, _ := filepath.Glob(filepath.Join(out, "results", "*.out"))
	if len(files) < 100 {
		t.Fatalf("%v: %d results: %s", err, len(files), text)
	}
	all := map[string]string{}
	for _, file := range files {
		result, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".out")] = strings.ReplaceAll(string(result), out, "OUT")
	}
	return all
}

// pgx runs the tests of pgx, the driver.
func pgx(t *testing.T, w *way) map[string]string {
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/jackc/pgx/v5").Output()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-mod=mod", "-count=1", "-json", "./...")
	cmd.Dir = strings.TrimSpace(string(module))
	cmd.Env = append(os.Environ(), fmt.Sprintf("PGX_TEST_DATABASE=host=127.0.0.1 port=%s user=postgres database=%s", w.port, database))
	text, _ := cmd.Output()
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		var event struct{ Action, Package, Test string }
		if json.Unmarshal([]byte(line), &event) == nil && event.Test != "" && !strings.Contains(event.Test, os.TempDir()) && slices.Contains([]string{"pass", "fail", "skip"}, event.Action) {
			all[event.Package+" "+event.Test] = event.Action
		}
	}
	if len(all) < 1000 {
		t.Fatalf("%d tests: %.2000s", len(all), text)
	}
	return all
}
