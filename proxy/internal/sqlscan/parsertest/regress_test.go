package parsertest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
)

// TestRegression has psql run PostgreSQL's own regression tests on a real server,
// with a judge in between. psql takes care of its own commands, of variables and
// of COPY's data, so what is judged is what a server is sent. A test that needs a
// file or a library of the regression suite's fails in part, which is no matter:
// its statements are sent all the same.
func TestRegression(t *testing.T) {
	files := regressionFiles(t)
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Fatal(err)
	}
	server := startServer(t)
	j := &judge{t: t, seen: map[string]bool{}}
	r := relay{server: server.Addr(), ask: j.ask, finished: j.settle, ended: j.ended}
	if err := r.listen(); err != nil {
		t.Fatal(err)
	}
	for i, file := range files {
		// Each test has a database of its own, with what the first few have made: one
		// that declares an implicit conversion as volatile, say, would make a write of
		// every query of the others.
		database, template := "regression", "base"
		if i < len(setup) {
			database, template = "base", "template0"
		}
		if i == 0 || i >= len(setup) {
			newDatabase(t, server, database, template)
		}
		conn, err := pgx.Connect(t.Context(), server.URL(database)+"&lock_timeout=1")
		if err != nil {
			t.Fatal(err)
		}
		j.begin(filepath.Base(file), conn)
		runFile(t, psql, r.port(), database, file)
		r.idle()
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	t.Log(&j.tally)
	t.Log(&j.lexing)
	j.bound()
}

// setup has the tests that make what many others use, in their order.
var setup = []string{"test_setup.sql", "create_misc.sql", "create_index.sql"}

// regressionFiles returns the paths of the tests, those of setup first.
func regressionFiles(t *testing.T) []string {
	folder := filepath.Join(servers.CacheDir(), "regress")
	files, err := filepath.Glob(filepath.Join(folder, "*.sql"))
	if err != nil || len(files) < 200 {
		t.Fatalf("%d regression tests of PostgreSQL are in the cache: run scripts/install-servers --all", len(files))
	}
	var first []string
	for _, name := range setup {
		first = append(first, filepath.Join(folder, name))
	}
	return append(first, slices.DeleteFunc(files, func(file string) bool { return slices.Contains(first, file) })...)
}

// startServer starts a server to which nobody writes but who is connected.
func startServer(t *testing.T) *servers.Postgres {
	server, err := servers.StartPostgres(context.Background(), servers.PostgresConfig{Major: 15, Settings: map[string]string{
		"autovacuum": "off", "statement_timeout": "2s",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

// newDatabase makes a database anew.
func newDatabase(t *testing.T, server *servers.Postgres, name, template string) {
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)", "CREATE DATABASE " + name + " TEMPLATE " + template} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// runFile has psql run a file. A status of its own says no more than that the last
// statement failed, or that the test is not for this server.
func runFile(t *testing.T, psql string, port int, database, file string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, psql, "-X", "-q", "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-U", "postgres", "-d", database, "-f", file)
	run.Env = append(os.Environ(), "PGSSLMODE=disable", "PGGSSENCMODE=disable", "PGOPTIONS=-c client_min_messages=error",
		"PG_ABS_SRCDIR=/nowhere", "PG_ABS_BUILDDIR=/nowhere", "PG_LIBDIR=/nowhere", "PG_DLSUFFIX=.so")
	began := time.Now()
	err := run.Run()
	var exit *exec.ExitError
	if ctx.Err() != nil || err != nil && !errors.As(err, &exit) {
		t.Errorf("%s: %v", file, err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Logf("%s took %v", filepath.Base(file), took.Round(time.Second))
	}
}
