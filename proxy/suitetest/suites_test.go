// Package suitetest runs the test suites of PostgreSQL, of drivers and of Django directly and through
// the proxy, without a fence and with one, and those of clients of Redis through the relay. What a
// test prints, or how it ends, must be the same, but for the differences that are listed here.
package suitetest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// way is how a suite reaches a server of its own.
type way struct {
	migrated bool   // the database has the schema
	pooled   bool   // through a PgBouncer: one server connection in transaction mode, or a session's own
	suspect  bool   // each session has first sent the texts of suspects
	proxied  bool   // through a proxy, before the pooler
	behind   bool   // the proxy is behind the pooler
	secured  bool   // which wants TLS
	token    string // under a fence with this one: current or stale

	pg      *servers.Postgres
	port    string // where it connects to
	root    string // the authority of the proxy's certificate
	metrics *prometheus.Registry
}

// The tokens.
const current, stale = "5", "4"

// The databases that tests use: most the first, lib/pq's the second, and Django's both.
const database, second = "regression", "pqgo"

// hba lets roles of lib/pq's and of tokio-postgres's tests authenticate.
const hba = `host all pqgomd5,md5_user all md5
host all pqgopassword,pass_user all password
host all pqgoscram,scram_user all scram-sha-256
host all all all trust
`

// suspects are texts without a fence that ORMs, migrations, PostgREST and psql send, and that look
// as if they could set one.
var suspects = []string{
	`SELECT 1 AS U&"caf\00e9"`,
	"SELECT 'see set_config in the manual'",
	"COMMENT ON DATABASE regression IS 'set_config'",
	"UPDATE pg_settings SET setting = setting WHERE name = 'work_mem'",
	"SELECT set_config(lower('App.x'), '1', true)",
	"DO $$ BEGIN PERFORM set_config('app.x', '1', true); END $$",
	"CREATE OR REPLACE FUNCTION tenant() RETURNS text LANGUAGE sql AS $$ SELECT set_config('app.x', '1', true) $$",
}

// open starts a server with the databases, and the proxy.
func (w way) open(t *testing.T, s *suite) *way {
	t.Helper()
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: 15, HBA: hba, Settings: map[string]string{
		"max_prepared_transactions": "10", "max_connections": "200", "autovacuum": "off", "wal_level": "logical",
	}})).EndWith(t)
	w.pg, w.metrics = pg, prometheus.NewRegistry()
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE regression TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	stack.Exec(t, pg.URL(database), s.setup...)
	if w.migrated {
		conn := stack.Connect(t, pg.URL(database))
		if err := migrations.Apply(t.Context(), conn, nil); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		stack.Exec(t, pg.URL(database), "SELECT wirefence.seal('suite', "+current+", 'the suite')")
	}
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE pqgo TEMPLATE regression")
	settings := []string{"lc_messages = 'C'", "lc_monetary = 'C'", "lc_numeric = 'C'", "lc_time = 'C'", "bytea_output = 'hex'", "timezone_abbreviations = 'Default'"}
	if w.token != "" {
		settings = append(settings, "wirefence.token = 'suite="+w.token+"'")
	}
	for _, setting := range settings {
		stack.Exec(t, pg.URL("postgres"), "ALTER DATABASE regression SET "+setting, "ALTER DATABASE pqgo SET "+setting)
	}
	server := pg.Addr()
	if w.pooled && !w.behind {
		server = pool(t, server, s.pool)
	}
	if w.proxied {
		o := proxy.Options{Upstream: "postgres://" + server + "/", DatabaseURL: pg.URL(database), Registerer: w.metrics, MaxStatement: 64 << 20} // psycopg2 sends 50 MB
		if w.secured {
			a := authority.New(t)
			pair := a.Issue(t, "localhost", "127.0.0.1")
			o.TLS, w.root = proxy.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, Mode: proxy.TLSRequire}, a.CAFile
		}
		server = stack.Serve(t, o).Addr
	}
	if w.behind {
		server = pool(t, server, s.pool)
	}
	if w.suspect {
		server = sayingFirst(t, server, suspects)
	}
	w.port = stack.Port(server)
	return &w
}

// pool is the address of a PgBouncer with one server connection in transaction mode, or with one for
// each session.
func pool(t *testing.T, upstream, mode string) string {
	t.Helper()
	c := servers.PgBouncerConfig{Upstream: upstream, Clients: 100, PoolMode: mode,
		Passwords: map[string]string{"pqgo": ""}, Settings: map[string]string{"query_wait_timeout": "10"},
	}
	if mode == "transaction" {
		c.PoolSize = 1
	}
	b, err := servers.StartPgBouncer(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b.Addr()
}

// Without a fence nothing differs; under a current fence what is listed; under a stale one nothing
// gets in.
//
// Evidence: I6
func TestSuites(t *testing.T) {
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) {
			var direct, migrated map[string]string
			t.Run("direct", func(t *testing.T) { direct, _ = s.results(t, way{}) })
			t.Run("without a fence", func(t *testing.T) {
				if n := s.compare(t, direct, way{proxied: true}, nil).counted(t, "wirefence_checks_total"); n != 0 {
					t.Errorf("%v checks", n)
				}
			})
			t.Run("without a fence, behind texts that look like one", func(t *testing.T) {
				want, _ := s.results(t, way{suspect: true})
				s.compare(t, want, way{suspect: true, proxied: true}, nil)
			})
			t.Run("without a fence, before PgBouncer", func(t *testing.T) {
				if s.pool == "" {
					t.Skip("its tests aren't run with PgBouncer")
				}
				want, _ := s.results(t, way{pooled: true})
				s.compare(t, want, way{pooled: true, proxied: true}, nil)
			})
			t.Run("direct, with the schema", func(t *testing.T) { migrated, _ = s.results(t, way{migrated: true}) })
			fenced := func(t *testing.T, w way, listed map[string]string) {
				if n := s.compare(t, migrated, w, listed).counted(t, "wirefence_checks_total"); n < float64(cmp.Or(s.checks, s.least/2)) {
					t.Errorf("it was not fenced: %v checks", n)
				}
			}
			t.Run("fenced", func(t *testing.T) { fenced(t, way{migrated: true, proxied: true, token: current}, s.fenced) })
			t.Run("fenced, with TLS", func(t *testing.T) {
				if s.plain {
					t.Skip("its tests speak no TLS")
				}
				listed := maps.Clone(s.encrypted)
				if listed == nil {
					listed = map[string]string{}
				}
				maps.Copy(listed, s.fenced)
				fenced(t, way{migrated: true, proxied: true, secured: true, token: current}, listed)
			})
			t.Run("fenced, behind PgBouncer", func(t *testing.T) {
				if s.pool != "session" {
					t.Skip("its tests aren't run with PgBouncer in session mode")
				}
				migrated, _ = s.results(t, way{migrated: true, pooled: true})
				fenced(t, way{migrated: true, pooled: true, behind: true, proxied: true, token: current}, s.fenced)
			})
			t.Run("stale", func(t *testing.T) {
				w := way{migrated: true, proxied: true, token: stale}.open(t, &s)
				before := objects(t, w)
				s.run(t, w)
				if after := objects(t, w); after != before {
					t.Errorf("a stale suite has made something: %s, and before %s", after, before)
				}
				if w.counted(t, "wirefence_refusals_total") == 0 {
					t.Error("nothing was refused")
				}
			})
		})
	}
}

// results runs a suite on a server of its own.
func (s *suite) results(t *testing.T, w way) (map[string]string, *way) {
	t.Helper()
	opened := w.open(t, s)
	all := s.run(t, opened)
	maps.DeleteFunc(all, func(name, _ string) bool { return s.timed[name] != "" })
	return all, opened
}

// compare runs a suite and compares its results with a direct run's.
func (s *suite) compare(t *testing.T, want map[string]string, w way, listed map[string]string) (opened *way) {
	t.Helper()
	direct := func() map[string]string {
		want, _ := s.results(t, way{migrated: w.migrated, pooled: w.pooled, suspect: w.suspect})
		return want
	}
	s.agree(t, want, direct, func() (got map[string]string) {
		got, opened = s.results(t, w)
		return got
	}, listed)
	return opened
}

// agree compares the results of a suite in two ways, one of which has run. Where they differ both run
// again, and again, and must differ in the same tests: some give a server 100 ms.
func (s *suite) agree(t *testing.T, want map[string]string, direct, through func() map[string]string, listed map[string]string) {
	t.Helper()
	got := through()
	all := differences(want, got, listed)
	for try := 2; len(all) > 0 && try <= 3; try++ {
		t.Logf("both run again for %v", slices.Sorted(maps.Keys(all)))
		want = direct()
		got = through()
		again := differences(want, got, listed)
		maps.DeleteFunc(all, func(name, _ string) bool { return again[name] == "" })
	}
	if n := failures(want); len(want) < s.least || n > len(want)/5 {
		t.Errorf("%d tests ran, of at least %d, and %d failed directly: what they need is missing", len(want), s.least, n)
	} else {
		record(t, s.name, want, got)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Error(name, all[name])
	}
	t.Logf("%d tests, of which %d are to differ", len(want), len(listed))
}

func failures(results map[string]string) (n int) {
	for _, result := range results {
		if slices.Contains([]string{"fail", "FAIL", "FAILED", "failed", "ERROR", "not ok"}, result) {
			n++
		}
	}
	return n
}

// objects counts what a session may have made.
func objects(t *testing.T, w *way) (text string) {
	t.Helper()
	for _, name := range []string{database, second} {
		conn := stack.Connect(t, w.pg.URL(name))
		var counts string
		if err := conn.QueryRow(t.Context(), `SELECT concat_ws(' ', (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_type),
			(SELECT count(*) FROM pg_namespace), (SELECT count(*) FROM pg_roles), (SELECT count(*) FROM pg_database), (SELECT count(*) FROM pg_largeobject_metadata))`).Scan(&counts); err != nil {
			t.Fatal(err)
		}
		text += counts + "; "
	}
	return text
}

// counted sums a counter of the proxy.
func (w *way) counted(t *testing.T, name string) (sum float64) {
	t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// differences compares results by the tests' names. A difference that is listed must be there, too.
func differences(want, got, listed map[string]string) map[string]string {
	all := map[string]string{}
	for name := range want {
		known := func(test string) bool {
			return name == test || strings.HasPrefix(name, test+"/") || strings.HasPrefix(name, test+" ")
		}
		if got[name] != want[name] && !slices.ContainsFunc(slices.Collect(maps.Keys(listed)), known) {
			all[name] = "differs:\n" + firstDifference(want[name], got[name])
		}
	}
	for name, reason := range listed {
		if got[name] == want[name] {
			all[name] = "doesn't differ, and it should: " + reason
		}
	}
	return all
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
