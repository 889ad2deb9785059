package drivertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

// output returns a driver's version from what a command prints.
func output(pattern, command string, args ...string) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		// What runs it tells the version; whether it succeeds, the tests do.
		out, _ := exec.Command(command, args...).CombinedOutput()
		found := regexp.MustCompile(pattern).FindString(string(out))
		need(t, found != "", fmt.Sprintf("what %s %s asks for (%s)", command, strings.Join(args, " "), out))
		return found
	}
}

func importing(python3 string) func(*testing.T) string {
	return output(`\d+(\.\d+)+`, python, "-c", "import "+python3+"; print("+python3+".__version__)")
}

// module returns the version of a Go module that go.mod requires.
func module(name string) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		text, err := os.ReadFile("../../go.mod")
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(name) + ` v(\S+)`).FindStringSubmatch(string(text))
		if found == nil {
			t.Fatalf("go.mod doesn't require %s", name)
		}
		return found[1]
	}
}

func nodeModules() string { return filepath.Join(servers.CacheDir(), "node", "node_modules") }

func npm(name string) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		return output(`\d+\.\d+\.\d+`, "node", "-p", "require('"+filepath.Join(nodeModules(), name, "package.json")+"').version")(t)
	}
}

func startPython(name string) func(*testing.T, []string) runner {
	return func(t *testing.T, env []string) runner {
		t.Helper()
		return launch(t, env, python, "testdata/python/"+name+"_client.py")
	}
}

func startNode(name string) func(*testing.T, []string) runner {
	return func(t *testing.T, env []string) runner {
		t.Helper()
		return launch(t, append(env, "NODE_PATH="+nodeModules()), "node", "testdata/node/"+name+".cjs")
	}
}

func startPerl(t *testing.T, env []string) runner {
	t.Helper()
	return launch(t, env, "perl", "testdata/perl/dbd_pg.pl")
}

func startRuby(t *testing.T, env []string) runner {
	t.Helper()
	return launch(t, env, "ruby", "testdata/ruby/pg.rb")
}

func startPHP(t *testing.T, env []string) runner {
	t.Helper()
	return launch(t, env, "php", "-d", "display_errors=stderr", "testdata/php/pdo.php")
}

func startJava(t *testing.T, env []string) runner {
	t.Helper()
	classes := t.TempDir()
	build(t, "javac", "-encoding", "UTF-8", "-cp", jar, "-d", classes, "testdata/java/Driver.java", "testdata/java/Run.java")
	return launch(t, env, "java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", "-cp", classes+":"+jar, "Driver")
}

func startC(t *testing.T, env []string) runner {
	t.Helper()
	into := filepath.Join(t.TempDir(), "pipeline")
	include, err := exec.Command("pg_config", "--includedir").Output()
	need(t, err == nil, "libpq-dev")
	build(t, "gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"+strings.TrimSpace(string(include)), "-o", into, "testdata/c/pipeline.c", "-lpq")
	return launch(t, env, into)
}

func build(t *testing.T, command string, args ...string) {
	t.Helper()
	_, err := exec.LookPath(command)
	need(t, err == nil, command)
	if out, err := exec.Command(command, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}
