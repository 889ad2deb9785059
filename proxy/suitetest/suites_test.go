// Package suitetest runs the test suites of PostgreSQL and of pgx directly and through the proxy,
// without a fence and with one. What a test prints, or how it ends, must be the same, but for the
// differences that are listed here.
package suitetest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// suite is somebody else's tests.
type suite struct {
	name  string
	setup []string // SQL ahead of it
	// run returns what came of each test, against the database at a host and a port.
	run func(t *testing.T, w *way) map[string]string
	// fenced has the tests that differ under a fence, with the reason.
	fenced map[string]string
}

var suites = []suite{
	{name: "regress", run: regress, fenced: map[string]string{
		"advisory_lock":  "pg_locks shows the check's lock",
		"guc":            "the check loads PL/pgSQL, and with it the names of its settings",
		"portals":        "pg_cursors shows the check ahead of DECLARE",
		"prepare":        "pg_prepared_statements shows the check ahead of PREPARE",
		"prepared_xacts": "PREPARE TRANSACTION is refused",
		"temp":           "PREPARE TRANSACTION is refused",
	}},
	{name: "isolation", run: isolation, fenced: map[string]string{"stats": "PREPARE TRANSACTION is refused"}},
	{name: "pgx", run: pgx, fenced: map[string]string{}, setup: []string{
		"CREATE EXTENSION hstore", "CREATE EXTENSION ltree", "CREATE DOMAIN uint64 AS numeric(20,0)", `CREATE ROLE " tricky, ' } "" \ test user " SUPERUSER PASSWORD 'secret'`,
	}},
}

// way is how a suite reaches a server of its own.
type way struct {
	pg   *servers.Postgres
	port string // where it connects to
}

const database = "regression"

// open starts a server with the database, with the schema or without, and a proxy before it or none.
func (s *suite) open(t *testing.T, migrated, proxied bool) *way {
	t.Helper()
	pg, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: 15, Settings: map[string]string{
		"max_prepared_transactions": "10", "max_connections": "200", "autovacuum": "off", "wal_level": "logical",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pg.Close)
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE regression TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	for _, setting := range []string{"lc_messages = 'C'", "lc_monetary = 'C'", "lc_numeric = 'C'", "lc_time = 'C'", "bytea_output = 'hex'", "timezone_abbreviations = 'Default'"} {
		stack.Exec(t, pg.URL("postgres"), "ALTER DATABASE regression SET "+setting)
	}
	stack.Exec(t, pg.URL(database), s.setup...)
	w := &way{pg: pg, port: strconv.Itoa(pg.Port)}
	if migrated {
		if err := migrations.Apply(t.Context(), stack.Connect(t, pg.URL(database)), nil); err != nil {
			t.Fatal(err)
		}
	}
	if proxied {
		w.port = stack.Port(stack.Serve(t, proxy.Options{Upstream: "postgres://" + pg.Addr() + "/", DatabaseURL: pg.URL(database)}).Addr)
	}
	return w
}

// Without a fence nothing differs; under a current fence what is listed; under a stale one nothing
// gets in.
//
// Evidence: I6
func TestSuites(t *testing.T) {
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) {
			var direct, migrated map[string]string
			t.Run("direct", func(t *testing.T) { direct = s.run(t, s.open(t, false, false)) })
			t.Run("without a fence", func(t *testing.T) { differ(t, direct, s.run(t, s.open(t, false, true)), nil) })
			t.Run("direct, with the schema", func(t *testing.T) { migrated = s.run(t, s.open(t, true, false)) })
			t.Run("fenced", func(t *testing.T) {
				w := s.open(t, true, true)
				stack.Exec(t, w.pg.URL(database), "SELECT wirefence.seal('suite', 5, 'the suite')", "ALTER DATABASE regression SET wirefence.token = 'suite=5'")
				differ(t, migrated, s.run(t, w), s.fenced)
			})
			t.Run("stale", func(t *testing.T) {
				w := s.open(t, true, true)
				stack.Exec(t, w.pg.URL(database), "SELECT wirefence.seal('suite', 5, 'the suite')", "ALTER DATABASE regression SET wirefence.token = 'suite=4'")
				before := objects(t, w)
				s.run(t, w)
				if after := objects(t, w); after != before {
					t.Errorf("a stale suite has made something: %s, and before %s", after, before)
				}
			})
		})
	}
}

// objects counts what a session may have made.
func objects(t *testing.T, w *way) string {
	t.Helper()
	conn := stack.Connect(t, w.pg.URL(database))
	var text string
	if err := conn.QueryRow(t.Context(), `SELECT concat_ws(' ', (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_type),
		(SELECT count(*) FROM pg_namespace), (SELECT count(*) FROM pg_roles), (SELECT count(*) FROM pg_database), (SELECT count(*) FROM pg_largeobject_metadata))`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

// differ compares results by the tests' names. A difference that is listed must be there, too.
func differ(t *testing.T, want, got map[string]string, listed map[string]string) {
	t.Helper()
	if len(want) == 0 {
		t.Fatal("there is nothing to compare with")
	}
	same := 0
	for _, name := range slices.Sorted(maps.Keys(want)) {
		reason, known := listed[name]
		switch differs := got[name] != want[name]; {
		case differs && !known:
			t.Errorf("%s differs:\n%s", name, firstDifference(want[name], got[name]))
		case !differs && known:
			t.Errorf("%s doesn't differ, and it should: %s", name, reason)
		case !differs:
			same++
		}
	}
	t.Logf("%d of %d are the same", same, len(want))
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	part := func(lines []string) string { return strings.Join(lines[max(0, n-3):min(len(lines), n+5)], "\n") }
	return fmt.Sprintf("line %d\n--- want\n%s\n--- got\n%s", n+1, part(a), part(b))
}
