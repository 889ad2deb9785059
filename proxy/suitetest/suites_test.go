// Package suitetest runs the test suites of PostgreSQL, of drivers and of Django directly and through
// the proxy, without a fence and with one, and those of clients of Redis through the relay. What a
// test prints, or how it ends, must be the same, but for the differences that are listed here.
package suitetest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// suite is somebody else's tests.
type suite struct {
	name  string
	setup []string // SQL ahead of it
	// run returns what came of each test.
	run func(t *testing.T, w *way) map[string]string
	// least is how many tests there must be.
	least int
	// fenced has the tests that differ under a fence, with the reason, and encrypted those that
	// also do with TLS. Parts of a test are among what it names.
	fenced, encrypted map[string]string
	// crowd says why its tests can't share one server connection.
	crowd string
}

// ownSecond is why most suites can't share one server connection.
const ownSecond = "its tests wait for a second session while the first has a transaction open"

var suites = []suite{
	{name: "regress", run: regress, least: 200, fenced: map[string]string{
		"advisory_lock":  "pg_locks shows the check's lock",
		"guc":            "the check loads PL/pgSQL, and with it the names of its settings",
		"portals":        "pg_cursors shows the check ahead of DECLARE",
		"prepare":        "pg_prepared_statements shows the check ahead of PREPARE",
		"prepared_xacts": "PREPARE TRANSACTION is refused",
		"temp":           "PREPARE TRANSACTION is refused",
	}},
	{name: "isolation", run: isolation, least: 100, crowd: ownSecond, fenced: map[string]string{"stats": "PREPARE TRANSACTION is refused"}, encrypted: map[string]string{
		"temp-schema-cleanup": "libpq says that an SSL connection was closed",
	}},
	{name: "pgx", run: goTests("github.com/jackc/pgx/v5", pgx), crowd: ownSecond, least: 2000, setup: []string{
		"CREATE EXTENSION hstore", "CREATE EXTENSION ltree", "CREATE DOMAIN uint64 AS numeric(20,0)", `CREATE ROLE " tricky, ' } "" \ test user " SUPERUSER PASSWORD 'secret'`,
	}, encrypted: map[string]string{
		"pgconn TestConnExecParamsContextCanceledAfterResponseBuffered": "it turns TLS off",
	}},
	{name: "pq", run: goTests("github.com/lib/pq", pq), crowd: ownSecond, least: 800, setup: []string{
		"CREATE ROLE pqgo LOGIN SUPERUSER", "CREATE ROLE pqgossl LOGIN", "CREATE ROLE pqgosslcert LOGIN",
		"CREATE ROLE pqgopassword LOGIN PASSWORD 'wordpass'", "CREATE ROLE pqgoscram LOGIN PASSWORD 'wordpass'",
		"SET password_encryption = 'md5'; CREATE ROLE pqgomd5 LOGIN PASSWORD 'wordpass'",
	}, encrypted: map[string]string{
		"TestConnectMulti":                 "its fake servers have no TLS",
		"TestConnectionTargetSessionAttrs": "its fake servers have no TLS, and it waits for them for ever: it is skipped",
		"TestNetworkError":                 "it counts what is written",
		"TestNewConnector":                 "it tells how the environment connects",
		"TestPreProtocolError":             "its fake servers have no TLS",
		"TestProtocolVersion":              "its fake servers have no TLS",
		"TestService":                      "it tells how the environment connects",
		"TestSimpleQueryWithoutResponse":   "its fake servers have no TLS",
		"TestStartupParameters":            "its fake servers have no TLS",
		"TestUnexpectedEOF":                "its fake servers have no TLS",
	}},
	{name: "node-postgres", run: node, crowd: ownSecond, least: 200, fenced: map[string]string{
		"test/integration/client/query-error-handling-tests.js": "pg_stat_activity shows the check ahead of the query",
	}, encrypted: map[string]string{
		"test/integration/client/connection-timeout-tests.js": "its fake servers have no TLS",
		"test/integration/client/ssl-tests.js":                "it wants TLS, which the direct server doesn't have",
		"test/integration/connection-pool/error-tests.js":     "it destroys its own socket, and with TLS the driver tells the error twice",
		"test/integration/gh-issues/2627-tests.js":            "its fake server has no TLS",
		"test/integration/gh-issues/3174-tests.js":            "its fake servers have no TLS",
	}},
	{name: "psycopg2", run: psycopg2, crowd: ownSecond, least: 400, setup: []string{"CREATE EXTENSION hstore"}, fenced: map[string]string{
		"tests.test_connection.ConnectionTwoPhaseTests.test_cancel_fails_prepared":            "PREPARE TRANSACTION is refused",
		"tests.test_lobject.LargeObjectTests.test_read_after_tpc_prepare":                     "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_recovered_xids":                   "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_tpc_commit":                       "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_tpc_commit_recovered":             "PREPARE TRANSACTION is refused",
		"tests.test_psycopg2_dbapi20.Psycopg2TPCTests.test_tpc_commit_with_prepare":           "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_tpc_recover_non_dbapi_connection": "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_tpc_rollback":                     "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_tpc_rollback_recovered":           "PREPARE TRANSACTION is refused",
		"tests.test_psycopg2_dbapi20.Psycopg2TPCTests.test_tpc_rollback_with_prepare":         "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_unparsed_roundtrip":               "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_xid_encoding":                     "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_xid_roundtrip":                    "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_xid_unicode":                      "PREPARE TRANSACTION is refused",
		"tests.test_connection.ConnectionTwoPhaseTests.test_xid_unicode_unparsed":             "PREPARE TRANSACTION is refused",
	}},
	{name: "django", run: django, least: 4000},
}

// way is how a suite reaches a server of its own.
type way struct {
	migrated bool   // the database has the schema
	pooled   bool   // through a PgBouncer with one server connection, in transaction mode
	suspect  bool   // each session has first sent the texts of suspects
	proxied  bool   // through a proxy, before the pooler
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

// hba lets roles of lib/pq's tests authenticate.
const hba = `host all pqgomd5 all md5
host all pqgopassword all password
host all pqgoscram all scram-sha-256
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
func (w way) open(t *testing.T, setup []string) *way {
	t.Helper()
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: 15, HBA: hba, Settings: map[string]string{
		"max_prepared_transactions": "10", "max_connections": "200", "autovacuum": "off", "wal_level": "logical",
	}})).EndWith(t)
	w.pg, w.port, w.metrics = pg, strconv.Itoa(pg.Port), prometheus.NewRegistry()
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE regression TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	stack.Exec(t, pg.URL(database), setup...)
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
	if w.pooled {
		b, err := servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{Upstream: server, Clients: 100, PoolSize: 1, PoolMode: "transaction",
			Passwords: map[string]string{"pqgo": ""}, Settings: map[string]string{"query_wait_timeout": "10"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		server, w.port = b.Addr(), stack.Port(b.Addr())
	}
	if w.proxied {
		o := proxy.Options{Upstream: "postgres://" + server + "/", DatabaseURL: pg.URL(database), Registerer: w.metrics, MaxStatement: 64 << 20} // psycopg2 sends 50 MB
		if w.secured {
			a := authority.New(t)
			pair := a.Issue(t, "localhost", "127.0.0.1")
			o.TLS, w.root = proxy.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, Mode: proxy.TLSRequire}, a.CAFile
		}
		server = stack.Serve(t, o).Addr
		w.port = stack.Port(server)
	}
	if w.suspect {
		w.port = stack.Port(sayingFirst(t, server, suspects))
	}
	return &w
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
				if s.crowd != "" {
					t.Skip(s.crowd)
				}
				want, _ := s.results(t, way{pooled: true})
				s.compare(t, want, way{pooled: true, proxied: true}, nil)
			})
			t.Run("direct, with the schema", func(t *testing.T) { migrated, _ = s.results(t, way{migrated: true}) })
			fenced := func(t *testing.T, w way, listed map[string]string) {
				if s.compare(t, migrated, w, listed).counted(t, "wirefence_checks_total") < float64(s.least)/2 {
					t.Error("it was not fenced")
				}
			}
			t.Run("fenced", func(t *testing.T) { fenced(t, way{migrated: true, proxied: true, token: current}, s.fenced) })
			t.Run("fenced, with TLS", func(t *testing.T) {
				listed := maps.Clone(s.encrypted)
				if listed == nil {
					listed = map[string]string{}
				}
				maps.Copy(listed, s.fenced)
				fenced(t, way{migrated: true, proxied: true, secured: true, token: current}, listed)
			})
			t.Run("stale", func(t *testing.T) {
				w := way{migrated: true, proxied: true, token: stale}.open(t, s.setup)
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
	opened := w.open(t, s.setup)
	return s.run(t, opened), opened
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
	all := differences(want, through(), listed)
	for try := 2; len(all) > 0 && try <= 3; try++ {
		t.Logf("both run again for %v", slices.Sorted(maps.Keys(all)))
		want = direct()
		again := differences(want, through(), listed)
		maps.DeleteFunc(all, func(name, _ string) bool { return again[name] == "" })
	}
	if len(want) < s.least {
		t.Errorf("%d tests ran, and not %d", len(want), s.least)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Error(name, all[name])
	}
	t.Logf("%d tests, of which %d are to differ", len(want), len(listed))
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
