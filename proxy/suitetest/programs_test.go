package suitetest

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

// What programs print of a test: its name, and what came of it.
var (
	unittests = regexp.MustCompile(`(?m)^test\w* \((?P<test>\S+)\)(?:\n.*)? \.\.\. (?P<result>ok|FAIL|ERROR|skipped|expected failure)`)
	mochas    = regexp.MustCompile(`(?m)^ *(?P<test>\S.*) (?P<result>✔)$`)
	taps      = regexp.MustCompile(`(?m)^(?P<result>ok|not ok) \d+ - (?P<test>.*)$`)
	pytests   = regexp.MustCompile(`(?m)^tests?/(?P<test>\S+::.*?) (?P<result>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)`)
	crates    = regexp.MustCompile(`(?m)^test (?P<test>\S+) \.\.\. (?P<result>\w+)$`)
)

// read runs a program, keeps what it prints, and adds to all what that says of tests.
func read(t *testing.T, all map[string]string, prefix string, cmd *exec.Cmd, pattern *regexp.Regexp) error {
	t.Helper()
	text, err := cmd.CombinedOutput()
	keep(t, text)
	for _, match := range pattern.FindAllStringSubmatch(string(text), -1) {
		all[prefix+match[pattern.SubexpIndex("test")]] = match[pattern.SubexpIndex("result")]
	}
	return err
}

// python runs a suite of Python's in a folder of its source.
func python(pattern *regexp.Regexp, folder string, args func(*way) []string, env ...string) func(*testing.T, *way) map[string]string {
	return func(t *testing.T, w *way) map[string]string {
		settings, err := filepath.Abs("testdata")
		if err != nil {
			t.Fatal(err)
		}
		root, _, _ := strings.Cut(folder, "/")
		cmd := w.command(t, source(folder), "/usr/bin/python3", args(w)...)
		cmd.Env = append(cmd.Env, append(env, "PYTHONPATH="+settings+":"+source(root), "PYTHONDONTWRITEBYTECODE=1")...)
		all := map[string]string{}
		_ = read(t, all, "", cmd, pattern)
		return all
	}
}

// django are those of Django's tests that are about databases.
func django(*way) []string {
	return append([]string{"runtests.py", "--settings=databases", "--keepdb", "--noinput", "--parallel=1", "--verbosity=2"}, strings.Fields(layers)...)
}

// layers are the parts of Django's tests that are about databases.
const layers = `aggregation aggregation_regress annotations backends basic bulk_create constraints custom_columns custom_lookups
	custom_pk datatypes dates datetimes db_functions db_typecasts defer delete delete_regress distinct_on_fields expressions
	expressions_case expressions_window extra_regress filtered_relation foreign_object from_db_value get_or_create indexes inspectdb
	introspection lookup many_to_many many_to_one migrations model_fields multiple_database null_fk ordering postgres_tests
	prefetch_related queries raw_query schema select_for_update select_related timezones transaction_hooks transactions update`

func psycopg2(*way) []string {
	return []string{"-c", "import unittest; unittest.main('tests', 'test_suite', verbosity=2)"}
}

func asyncpg(w *way) []string {
	if w.token == stale { // it waits for ever for what is refused
		return []string{"-c", "import unittest, test_pool; del test_pool.TestPool.test_pool_remote_close; unittest.main(None, argv=['', 'discover', '-v'])"}
	}
	return []string{"-m", "unittest", "discover", "-v"}
}

// sqlalchemy runs tests of the dialect, and those that every dialect passes, by one driver. Its newest
// version, and the drivers', are in a folder of the cache.
func sqlalchemy(driver, keyword string) func(*testing.T, *way) map[string]string {
	return func(t *testing.T, w *way) map[string]string {
		cmd := w.command(t, source("sqlalchemy"), "/usr/bin/python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", "-v", "--maxfail=100000", "--tb=line", "--backend-only", "--dropfirst",
			"--dburi=postgresql+"+driver+"://postgres@127.0.0.1:"+w.port+"/"+database, "-k", keyword, "test/dialect/postgresql", "test/dialect/test_suite.py")
		cmd.Env = append(cmd.Env, "PYTHONPATH="+filepath.Join(servers.CacheDir(), "python"), "PYTHONDONTWRITEBYTECODE=1")
		named, all := map[string]string{}, map[string]string{}
		_ = read(t, named, "", cmd, pytests)
		for name, result := range named {
			all[backends.ReplaceAllString(name, "")] = result
		}
		return all
	}
}

// backends is what SQLAlchemy adds to the names of classes: a driver, and the server's version.
var backends = regexp.MustCompile(`_postgresql\+\w+?_\d+_\d+`)

// eachFile runs the files of a suite, each in a process of its own.
func eachFile(t *testing.T, files []string, pattern *regexp.Regexp, command func(file string) *exec.Cmd) map[string]string {
	t.Helper()
	if len(files) == 0 {
		t.Fatal("there are no files of tests")
	}
	all := map[string]string{}
	for _, file := range files {
		all[file] = fmt.Sprint(read(t, all, file+" ", command(file), pattern))
	}
	return all
}

// node runs the tests of node-postgres that need a server.
func node(t *testing.T, w *way) map[string]string {
	pg := source("node-postgres", "packages", "pg")
	run := func(script string) *exec.Cmd {
		cmd := w.command(t, pg, "timeout", "60", "node", script)
		cmd.Env = append(cmd.Env, "NODE_PATH="+filepath.Join(servers.CacheDir(), "node", "node_modules"))
		return cmd
	}
	_ = run("script/create-test-tables.js").Run() // the tests tell whether that went well
	return eachFile(t, found(t, pg, "test/integration", "-tests.js"), mochas, run)
}

// perl runs the tests of DBD::Pg, which keep what they have found out about the server in a file.
func perl(t *testing.T, w *way) map[string]string {
	folder := folder(t)
	if err := os.Symlink(source("dbd-pg", "t"), filepath.Join(folder, "t")); err != nil {
		t.Fatal(err)
	}
	return eachFile(t, found(t, source("dbd-pg"), "t", ".t"), taps, func(file string) *exec.Cmd {
		cmd := w.command(t, folder, "timeout", "120", "perl", "-I.", file)
		cmd.Env = append(cmd.Env, "DBI_DSN=dbi:Pg:dbname="+database+";host=127.0.0.1;port="+w.port, "DBI_USER=postgres")
		return cmd
	})
}

// found are the files of a suite, by their paths in it.
func found(t *testing.T, root, folder, suffix string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, suffix) {
			name, _ := filepath.Rel(root, path)
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// java runs the tests of pgjdbc, which speak TLS only where they are about it.
func java(t *testing.T, w *way) map[string]string {
	reports := t.TempDir()
	args := []string{"-cp", "target/test-classes:target/classes:target/libraries/*"}
	for name, value := range map[string]string{"server": "127.0.0.1", "port": w.port, "database": database, "build.properties.relative.path": "."} {
		args = append(args, "-D"+name+"="+value)
	}
	cmd := w.command(t, source("pgjdbc"), "java", append(args, "org.junit.platform.console.ConsoleLauncher",
		"--scan-classpath=target/test-classes", "--details=none", "--disable-banner", "--reports-dir="+reports)...)
	text, _ := cmd.CombinedOutput()
	keep(t, text)
	all := map[string]string{}
	for _, file := range found(t, reports, ".", ".xml") {
		var report struct {
			Cases []struct {
				Class   string    `xml:"classname,attr"`
				Name    string    `xml:"name,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		}
		text, err := os.ReadFile(filepath.Join(reports, file))
		if err := errors.Join(err, xml.Unmarshal(text, &report)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, c := range report.Cases {
			result := "pass"
			switch {
			case c.Failure != nil || c.Error != nil:
				result = "fail"
			case c.Skipped != nil:
				result = "skip"
			}
			all[strings.TrimPrefix(c.Class, "org.postgresql.")+" "+c.Name] = result
		}
	}
	return all
}

// rust runs the tests of tokio-postgres. PgBouncer 1.18 crashes, or answers nothing more, where a
// client cancels and doesn't wait for the end of the connection that it did that by.
func rust(t *testing.T, w *way) map[string]string {
	args := []string{"test", "--offline", "--quiet", "--all-features", "--test", "test", "--", "--test-threads=1", "--format=pretty"}
	if w.pooled {
		args = append(args, "--skip=cancel")
	}
	cmd := w.command(t, source("tokio-postgres"), "cargo", args...)
	cmd.Env = append(cmd.Env, "CARGO_HOME="+filepath.Join(servers.CacheDir(), "rust", "home"))
	all := map[string]string{}
	_ = read(t, all, "", cmd, crates)
	return all
}
