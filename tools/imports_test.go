// Package tools holds the linters of the repository in a module of its own, and
// the proof that the import rules bite.
package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/wirefence/wirefence"

// Each case is one file of a module that is laid out like the real one, with
// one import. by names the rule that must report it; "" means that it is
// allowed.
var imports = []struct {
	file, imports, by string
}{
	{"cmd/wirefence/a.go", module + "/proxy", ""},
	{"cmd/wirefence/a.go", module + "/lockclient", ""},
	{"cmd/wirefence/a.go", module + "/migrations", ""},
	{"cmd/wirefence/a.go", "flag", ""},
	{"cmd/wirefence/a.go", "log", ""},
	{"bench/a.go", "flag", ""},
	{"proxy/internal/rules/mutations/a.go", "flag", ""},

	{"fence/a.go", "net", ""},
	{"fence/a.go", module + "/migrations", "fence"},
	{"fence/a.go", module + "/internal/servers", "fence"},
	{"fence/a_test.go", module + "/internal/servers", ""},

	{"migrations/a.go", module + "/fence", ""},
	{"migrations/a.go", module + "/internal/engine", ""},
	{"migrations/a.go", module + "/lockclient", "migrations"},
	{"migrations/a_test.go", module + "/internal/servers", ""},

	{"lockclient/a.go", module + "/fence", ""},
	{"lockclient/a.go", module + "/lockclient/redis", ""},
	{"lockclient/redis/a.go", module + "/lockclient", ""},
	{"lockclient/a.go", module + "/proxy", "lockclient"},
	{"lockclient/redis/a.go", module + "/proxy", "lockclient"},
	{"lockclient/a.go", module + "/migrations", "lockclient"},

	{"internal/engine/a.go", module + "/internal/timelines", ""},
	{"internal/engine/a.go", module + "/migrations", "engine"},
	{"internal/engine/a_test.go", module + "/internal/stack", ""},

	{"internal/connstring/a.go", module + "/fence", "connstring"},
	{"internal/pgenv/a.go", module + "/internal/connstring", "pgenv"},
	{"internal/watched/a.go", module + "/fence", "watched"},
	{"internal/address/a.go", module + "/fence", "address"},
	{"lockclient/a.go", module + "/internal/address", ""},
	{"internal/witness/a.go", module + "/proxy", "witness"},
	{"internal/witness/a.go", module + "/internal/address", ""},
	{"internal/witness/a.go", module + "/internal/apiserver", ""},

	{"internal/series/a.go", module + "/proxy", "series"},

	{"internal/quietlog/a.go", module + "/fence", "quietlog"},

	{"internal/api/a.go", module + "/lockclient", ""},
	{"internal/api/a.go", module + "/internal/watched", ""},
	{"internal/api/a.go", module + "/internal/follow", ""},
	{"internal/api/a.go", module + "/internal/series", ""},
	{"internal/api/a.go", module + "/internal/effect", ""},
	{"internal/api/a.go", module + "/lockclient/redis", "api"},
	{"internal/api/a.go", module + "/proxy", "api"},
	{"internal/api/a_test.go", module + "/lockclient/redis", ""},

	{"internal/effect/a.go", module + "/fence", ""},
	{"internal/effect/a.go", module + "/lockclient", "effect"},
	{"internal/console/a.go", module + "/fence", "console"},
	{"internal/follow/a.go", module + "/fence", ""},
	{"internal/follow/a.go", module + "/lockclient", "follow"},

	{"internal/journal/a.go", module + "/fence", ""},
	{"internal/journal/a.go", module + "/proxy", ""},
	{"internal/journal/a.go", module + "/lockclient", "journal"},

	{"internal/metrics/a.go", module + "/lockclient", ""},
	{"internal/metrics/a.go", module + "/internal/timelines", ""},
	{"internal/metrics/a.go", module + "/lockclient/redis", "metrics"},
	{"internal/metrics/a.go", module + "/proxy", "metrics"},

	{"internal/campaign/a.go", module + "/lockclient", ""},
	{"internal/campaign/a.go", module + "/internal/quietlog", ""},
	{"internal/campaign/a.go", module + "/proxy", "holders"},
	{"internal/runner/a.go", module + "/fence", ""},
	{"internal/runner/a.go", module + "/internal/pgenv", ""},
	{"internal/runner/a.go", module + "/lockclient/redis", "holders"},
	{"internal/runner/a_test.go", module + "/lockclient/redis", ""},

	{"internal/manual/a.go", "text/tabwriter", ""},
	{"internal/manual/a.go", module + "/fence", "manual"},
	{"internal/pages/a_test.go", module + "/internal/servers", "pages"},
	{"internal/pages/page/a.go", module + "/internal/pages", ""},
	{"internal/pages/page/a.go", module + "/fence", "pages"},

	{"internal/servers/a.go", module + "/migrations", "servers"},
	{"internal/authority/a.go", module + "/proxy", "servers"},

	{"internal/adopt/a.go", module + "/fence", ""},
	{"internal/adopt/a.go", module + "/lockclient", "adopt"},
	{"internal/adopt/seal/a.go", module + "/lockclient", ""},
	{"internal/adopt/seal/a.go", module + "/internal/relay", "seal"},
	{"internal/adopt/leaderelection/a.go", module + "/internal/adopt/seal", ""},
	{"internal/adopt/leaderelection/a.go", module + "/internal/apiserver", ""},
	{"internal/adopt/leaderelection/a.go", module + "/lockclient", ""},
	{"internal/adopt/leaderelection/a.go", module + "/proxy", "leaderelection"},
	{"internal/apiserver/a.go", module + "/fence", "apiserver"},
	{"internal/adopt/rows/a.go", module + "/internal/adopt/seal", ""},
	{"internal/adopt/rows/a.go", module + "/proxy", "rows"},
	{"internal/adopt/advisory/a.go", module + "/internal/adopt", ""},
	{"internal/adopt/advisory/a.go", module + "/proxy", "advisory"},
	{"internal/relay/a.go", module + "/internal/adopt", ""},
	{"internal/relay/a.go", module + "/internal/quietlog", ""},
	{"internal/relay/a.go", module + "/lockclient", ""},
	{"internal/relay/a.go", module + "/lockclient/redis", "relay"},
	{"internal/relay/a.go", module + "/proxy", "relay"},
	{"internal/doctor/a.go", module + "/migrations", ""},
	{"internal/doctor/a.go", module + "/internal/engine", ""},
	{"internal/doctor/a.go", module + "/internal/timelines", ""},
	{"internal/doctor/a.go", module + "/lockclient/redis", ""},
	{"internal/doctor/a.go", module + "/proxy", "doctor"},

	{"internal/zombie/a.go", module + "/internal/runner", ""},
	{"internal/zombie/a.go", module + "/internal/pgenv", ""},
	{"internal/zombie/a.go", module + "/fence", "zombie"},
	{"zombietest/a.go", module + "/internal/zombie", ""},
	{"zombietest/a.go", module + "/fence", "zombietest"},

	{"model/a.go", "os/exec", ""},
	{"model/a.go", module + "/fence", "model"},
	{"model/a_test.go", module + "/internal/servers", "model"},

	{"proxy/a.go", module + "/fence", ""},
	{"proxy/a.go", module + "/proxy/internal/session", ""},
	{"proxy/a.go", "crypto/tls", ""},
	{"proxy/a.go", module + "/lockclient", "proxy"},
	{"proxy/a.go", module + "/migrations", "proxy"},
	{"proxy/internal/session/a.go", module + "/lockclient", "proxy"},

	{"proxy/internal/wire/a.go", "encoding/binary", ""},
	{"proxy/internal/wire/a.go", module + "/fence", "proxy-wire"},
	{"proxy/internal/wire/a.go", module + "/proxy/internal/sqltext", "proxy-wire"},
	{"proxy/internal/sqltext/a.go", module + "/fence", ""},
	{"proxy/internal/sqltext/a_test.go", module + "/internal/servers", ""},
	{"proxy/internal/sqltext/a.go", module + "/internal/servers", "proxy"},
	{"proxy/internal/sqltext/a.go", module + "/proxy/internal/wire", "proxy-sqltext"},
	{"proxy/internal/sqltext/a.go", module + "/proxy/internal/policy", "proxy-sqltext"},
	{"proxy/internal/policy/a.go", module + "/proxy/internal/sqltext", ""},
	{"proxy/internal/policy/a.go", module + "/fence", ""},
	{"proxy/internal/policy/a.go", module + "/proxy/internal/wire", "proxy-policy"},
	{"proxy/internal/policy/a_test.go", module + "/proxy/internal/ledger", "proxy-policy"},
	{"proxy/internal/policy/a.go", module + "/proxy/internal/session", "proxy-policy"},
	{"proxy/internal/ledger/a.go", "strings", ""},
	{"proxy/internal/ledger/a.go", module + "/fence", "proxy-ledger"},
	{"proxy/internal/ledger/a.go", module + "/proxy/internal/sqltext", "proxy-ledger"},
	{"proxy/internal/ledger/a_test.go", module + "/proxy/internal/wire", "proxy-ledger"},
	{"proxy/internal/session/a.go", module + "/proxy/internal/policy", ""},
	{"proxy/internal/session/a.go", module + "/proxy/internal/ledger", ""},
	{"proxy/internal/session/a.go", module + "/proxy/internal/sqltext", ""},
	{"proxy/internal/session/a.go", module + "/proxy/internal/wire", ""},
	{"proxy/internal/session/a.go", module + "/fence", ""},
	{"proxy/internal/session/a.go", module + "/proxy", "proxy-session"},
	{"proxy/internal/session/a_test.go", module + "/internal/servers", "proxy-session"},

	{"proxy/internal/scram/a.go", module + "/proxy/internal/wire", "proxy-scram"},
	{"proxy/internal/users/a.go", module + "/proxy/internal/scram", ""},
	{"proxy/internal/users/a.go", module + "/proxy/internal/upstream", "proxy-users"},
	{"proxy/internal/upstream/a.go", module + "/proxy/internal/secure", ""},
	{"proxy/internal/secure/a.go", module + "/proxy/internal/wire", "proxy-secure"},
	{"proxy/internal/secure/a_test.go", module + "/internal/stack", ""},
	{"proxy/internal/upstream/a.go", module + "/internal/watched", ""},
	{"proxy/internal/upstream/a.go", module + "/proxy/internal/session", "proxy-upstream"},
	{"proxy/internal/session/a.go", module + "/proxy/internal/upstream", "proxy-session"},

	{"proxy/internal/scram/a.go", "net", "proxy-core-does-no-io"},
	{"proxy/internal/upstream/a.go", "crypto/tls", ""},
	{"proxy/internal/users/a.go", "github.com/jackc/pgx/v5/pgxpool", ""},
	{"proxy/internal/wire/a.go", "io", ""},
	{"proxy/internal/wire/a.go", "net/url", ""},
	{"proxy/internal/wire/a.go", "net", "proxy-core-does-no-io"},
	{"proxy/internal/wire/a.go", "net/http", "proxy-core-does-no-io"},
	{"proxy/internal/session/a.go", "os", "proxy-core-does-no-io"},
	{"proxy/internal/session/a.go", "os/exec", "proxy-core-does-no-io"},
	{"proxy/internal/session/a.go", "crypto/tls", "proxy-core-does-no-io"},
	{"proxy/internal/session/a.go", "log", "proxy-core-does-no-io"},
	{"proxy/internal/session/a.go", "log/slog", "proxy-core-does-no-io"},
	{"proxy/internal/session/a_test.go", "os", ""},

	{"proxy/internal/session/a.go", "github.com/jackc/pgx/v5/pgproto3", ""},
	{"proxy/internal/session/a.go", "github.com/jackc/pgx/v5/pgconn", "proxy-core-does-no-io"},

	{"proxy/a.go", "flag", "settings-are-read-in-cmd"},
	{"lockclient/a.go", "github.com/caarlos0/env/v11", "settings-are-read-in-cmd"},
	{"cmd/wirefence/a.go", "github.com/caarlos0/env/v11", ""},
	{"lockclient/a.go", "log", "nothing-global"},
	{"fence/a.go", "github.com/jackc/pgproto3/v2", "retired"},
}

// others are the modules that the cases import from elsewhere, with any version
// that their path allows. The stub has empty packages in their place.
var others = map[string]string{
	"github.com/jackc/pgx/v5":      "v5.0.0",
	"github.com/caarlos0/env/v11":  "v11.0.0",
	"github.com/jackc/pgproto3/v2": "v2.0.0",
}

func TestImportRulesBite(t *testing.T) {
	t.Parallel()
	depguard := build(t)
	config, err := os.ReadFile("../.depguard.yaml")
	if err != nil {
		t.Fatal(err)
	}
	bitten := map[string]bool{}
	for _, c := range imports {
		bitten[c.by] = true
		t.Run(c.file+" imports "+strings.TrimPrefix(c.imports, module+"/"), func(t *testing.T) {
			t.Parallel()
			dir := stub(t, config)
			plant(t, filepath.Join(dir, c.file), c.imports)
			cmd := exec.Command(depguard, "./...")
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if c.by == "" {
				if err != nil {
					t.Errorf("depguard refuses it: %v\n%s", err, out)
				}
				return
			}
			if err == nil {
				t.Fatalf("depguard lets it pass\n%s", out)
			}
			report := "import '" + c.imports + "' is not allowed from list '" + c.by + "'"
			if !strings.Contains(string(out), report) {
				t.Errorf("depguard says\n%s\nand not: %s", out, report)
			}
		})
	}
	for line := range strings.Lines(string(config)) {
		name, isRule := strings.CutSuffix(strings.TrimSpace(line), ":")
		if isRule && !strings.ContainsAny(line[:1], " #") && !bitten[name] {
			t.Errorf("no case shows that the rule %s bites", name)
		}
	}
}

// A rule on a folder that was renamed would guard nothing.
func TestGuardedFoldersExist(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range imports {
		dir := filepath.Dir(c.file)
		if seen[dir] || dir == "bench" {
			continue
		}
		seen[dir] = true
		if found, err := filepath.Glob(filepath.Join("..", dir, "*.go")); err != nil || len(found) == 0 {
			t.Errorf("%s has no Go files; correct .depguard.yaml and the cases here", dir)
		}
	}
}

// build returns the path of a depguard of the version that go.mod names.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "depguard")
	out, err := exec.Command("go", "build", "-o", path, "github.com/OpenPeeDeeP/depguard/v2/cmd/depguard").CombinedOutput()
	if err != nil {
		t.Fatalf("building depguard: %v\n%s", err, out)
	}
	return path
}

// stub writes a module of the real one's name in which every package that a
// case imports exists, and the rules.
func stub(t *testing.T, config []byte) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, ".depguard.yaml"), string(config))
	gomod := "module " + module + "\n\ngo 1.26.0\n"
	for path, version := range others {
		gomod += "\nrequire " + path + " " + version + "\nreplace " + path + " => ./others/" + path + "\n"
		write(t, filepath.Join(dir, "others", path, "go.mod"), "module "+path+"\n")
	}
	write(t, filepath.Join(dir, "go.mod"), gomod)
	for _, c := range imports {
		inside, ours := strings.CutPrefix(c.imports, module+"/")
		switch {
		case ours:
			write(t, filepath.Join(dir, inside, "doc.go"), "package "+filepath.Base(inside)+"\n")
		case strings.Contains(c.imports, "."):
			write(t, filepath.Join(dir, "others", c.imports, "doc.go"), "package stub\n")
		}
	}
	return dir
}

// plant writes one Go file with one import. It must not make a cycle in the
// stub, whose other files import nothing.
func plant(t *testing.T, file, path string) {
	t.Helper()
	name := filepath.Base(filepath.Dir(file))
	switch {
	case name == "wirefence" || name == "bench":
		name = "main"
	case strings.HasSuffix(file, "_test.go"):
		name += "_test"
	}
	source := "package " + name + "\n\nimport _ \"" + path + "\"\n"
	if name == "main" {
		source += "\nfunc main() {}\n"
	}
	write(t, file, source)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
