package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// The clients that take leases by SQL pass tests of their own where their writes go to PostgreSQL,
// through the proxy, and through PgBouncer with transaction pooling.
func TestClientsBySQL(t *testing.T) {
	java := javaTests(t)
	later := laterRails(t)
	for _, way := range []string{"direct", "proxy", "pooler"} {
		for language, command := range map[string][]string{
			"ruby":           {"ruby", "-I", clients.ruby, "../ruby/test/wirefence_test.rb"},
			"ruby, later":    {"ruby", "-I", later + ":" + clients.ruby, "../ruby/test/wirefence_test.rb"},
			"java":           java,
			"python":         {python, "testdata/sql.py"},
			"python, newest": {"env", "PYTHONPATH=" + newest(), python, "testdata/sql.py"},
			"typescript":     {"node", filepath.Join(folder, "sql.js")},
			"rust":           append([]string{"cargo"}, cargo("test", "--test", "transactions")...),
		} {
			t.Run(way+"/"+language, func(t *testing.T) {
				t.Parallel()
				if language == "ruby, later" && later == "" {
					t.Skip("the system's sources of software have no later ActiveRecord")
				}
				w := newWorldFor(t, language+" by SQL")
				direct := fmt.Sprintf("postgresql://%%s@%s/%s?sslmode=disable", w.Addr(), w.Name)
				url := fmt.Sprintf(direct, "app")
				switch way {
				case "proxy":
					url = w.url
				case "pooler":
					pooler := stack.Started(servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{Upstream: w.Addr(), Clients: 20, PoolSize: 2, PoolMode: "transaction",
						Passwords: map[string]string{"app": ""}, Settings: map[string]string{"ignore_startup_parameters": "extra_float_digits"}})).EndWith(t)
					url = "postgresql://app@127.0.0.1:" + strconv.Itoa(pooler.Port) + "/" + w.Name + "?sslmode=disable"
				}
				leases := fmt.Sprintf(direct, "leases")
				if language == "java" {
					url, leases = jdbc(url), jdbc(leases)
				} else if strings.HasPrefix(language, "ruby") && way == "pooler" {
					url += "&prepared_statements=false"
				}
				cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
				cmd.Env = append(w.environment(language, w.Addr()), "DATABASE_URL="+url, "LEASES_URL="+leases, "WAY="+way)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// laterRails is the path of a later ActiveRecord than the distribution's, "" where scripts/install-servers
// has found none.
func laterRails(t *testing.T) string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*/lib", "concurrent-ruby-*/lib/concurrent-ruby"} {
		found, err := filepath.Glob(filepath.Join(servers.CacheDir(), "rails", pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return strings.Join(all, ":")
}

// newest is the path of the client for Python with the newest drivers and frameworks.
func newest() string {
	return absolute(clients.python) + ":" + filepath.Join(servers.CacheDir(), "python")
}

// jdbc returns a URL with a user as pgjdbc reads it.
func jdbc(url string) string {
	user, rest, _ := strings.Cut(strings.SplitAfter(url, "://")[1], "@")
	return "jdbc:postgresql://" + rest + "&prepareThreshold=0&user=" + user
}

// javaTests returns the command that runs the tests of the client for Java.
func javaTests(t *testing.T) []string {
	t.Helper()
	return []string{"java", "-cp", javaPath(t), "org.junit.runner.JUnitCore", "io.github.wirefence.FencedDataSourceTest"}
}

// javaPath returns the path of the classes of the client for Java, its tests, its driver, and what they need.
func javaPath(t *testing.T) string {
	t.Helper()
	path, err := compileJava()
	if err != nil {
		t.Fatalf("%v\nscripts/install-servers --test installs it", err)
	}
	return path
}

var compileJava = sync.OnceValues(func() (string, error) {
	classes := filepath.Join(filepath.Dir(folder), "java")
	// ShedLock, and Jackson for the driver.
	path := strings.Join([]string{classes, clients.jar, "/usr/share/java/junit4.jar", "/usr/share/java/hamcrest.jar", "/usr/share/java/postgresql.jar",
		filepath.Join(servers.CacheDir(), "java-locks", "*")}, ":")
	args := []string{"-encoding", "UTF-8", "--release", "17", "-Xlint:all,-try,-serial,-path,-processing,-classfile", "-Werror", "-cp", path, "-d", classes, "testdata/Driver.java"}
	sources, err := filepath.Glob(clients.java)
	if err != nil || len(sources) == 0 {
		return "", fmt.Errorf("%s has %d files, %v", clients.java, len(sources), err)
	}
	return path, errors.Join(os.MkdirAll(classes, 0o755), command("javac", append(args, sources...)...))
})

// The programs in the documentation of the crate compile.
func TestTheCrate(t *testing.T) {
	t.Parallel()
	if err := command("cargo", cargo("test", "--doc")...); err != nil {
		t.Error(err)
	}
}

// The gem builds, with all that it names.
func TestTheGemBuilds(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "gem", "build", "wirefence.gemspec", "--output", filepath.Join(t.TempDir(), "wirefence.gem"))
	cmd.Dir = "../ruby"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
