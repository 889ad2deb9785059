package suitetest

import (
	"strings"
	"testing"
)

// xa are the tests of pgjdbc that prepare transactions.
var xa = func() map[string]string {
	all := map[string]string{}
	for _, test := range strings.Fields(`AutoCommit CommitByDifferentConnection CommitUnknownXid CommittingCommittedXid
		DatabaseRemovesPreparedBeforeCommit DatabaseRemovesPreparedBeforeRollback MappingOfConstraintViolations
		NetworkIssueOnCommit NetworkIssueOnRollback OnePhaseCommitOfPrepared PreparingPreparedXid Recover
		RepeatedRolledBack Rollback RollbackByDifferentConnection RollbackUnknownXid TwoPhaseCommit`) {
		all["test.xa.XADataSourceTest test"+test] = "PREPARE TRANSACTION is refused"
	}
	return all
}()

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
	// timed has the tests whose result depends on the time or on chance, with the reason: they aren't compared.
	timed map[string]string
	// pool is the mode of PgBouncer that it can do with: transaction with one server connection, or
	// session where its tests wait for a second session while the first has a transaction open. Without
	// one they aren't run with PgBouncer.
	pool   string
	plain  bool // its tests speak no TLS
	checks int  // how many there are at least under a fence; 0 is half of least
}

// sqlalchemySetup is what SQLAlchemy's README.unittests asks for.
var sqlalchemySetup = []string{"CREATE EXTENSION hstore", "CREATE EXTENSION citext", "CREATE SCHEMA test_schema", "CREATE SCHEMA test_schema_2"}

// noRanges leaves out two thirds of a driver's tests: 7,368 operators between two ranges, each a SELECT of
// literals.
const noRanges = "not RangeRoundTripTest"

// twoPhase are the tests of SQLAlchemy that prepare transactions, by drivers of libpq.
var twoPhase = map[string]string{
	"dialect/postgresql/test_dialect.py::MiscBackendTest::test_autocommit_isolation_level":                     "COMMIT PREPARED is refused",
	"dialect/postgresql/test_dialect.py::TwoPhaseCommitTest::test_default_pg_dialect[commit]":                  "PREPARE TRANSACTION is refused",
	"dialect/postgresql/test_dialect.py::TwoPhaseCommitTest::test_default_pg_dialect[not_commit]":              "PREPARE TRANSACTION is refused",
	"dialect/postgresql/test_dialect.py::TwoPhaseCommitTest::test_provided_id_round_trip[commit-driverid]":     "PREPARE TRANSACTION is refused",
	"dialect/postgresql/test_dialect.py::TwoPhaseCommitTest::test_provided_id_round_trip[commit-noid]":         "PREPARE TRANSACTION is refused",
	"dialect/postgresql/test_dialect.py::TwoPhaseCommitTest::test_provided_id_round_trip[commit-withid]":       "PREPARE TRANSACTION is refused",
	"dialect/postgresql/test_dialect.py::TwoPhaseCommitTest::test_provided_id_round_trip[not_commit-driverid]": "PREPARE TRANSACTION is refused",
	"dialect/postgresql/test_dialect.py::TwoPhaseCommitTest::test_provided_id_round_trip[not_commit-noid]":     "PREPARE TRANSACTION is refused",
	"dialect/postgresql/test_dialect.py::TwoPhaseCommitTest::test_provided_id_round_trip[not_commit-withid]":   "PREPARE TRANSACTION is refused",
}

var suites = []suite{
	{name: "regress", run: regress, pool: "transaction", least: 200, fenced: map[string]string{
		"advisory_lock":  "pg_locks shows the check's lock",
		"guc":            "the check loads PL/pgSQL, and with it the names of its settings",
		"portals":        "pg_cursors shows the check ahead of DECLARE",
		"prepare":        "pg_prepared_statements shows the check ahead of PREPARE",
		"prepared_xacts": "PREPARE TRANSACTION is refused",
		"temp":           "PREPARE TRANSACTION is refused",
	}},
	{name: "isolation", run: isolation, least: 100, fenced: map[string]string{"stats": "PREPARE TRANSACTION is refused"}, encrypted: map[string]string{
		"temp-schema-cleanup": "libpq says that an SSL connection was closed",
	}},
	{name: "pgx", run: goTests("github.com/jackc/pgx/v5", pgx), least: 2000, setup: []string{
		"CREATE EXTENSION hstore", "CREATE EXTENSION ltree", "CREATE DOMAIN uint64 AS numeric(20,0)", `CREATE ROLE " tricky, ' } "" \ test user " SUPERUSER PASSWORD 'secret'`,
	}, encrypted: map[string]string{
		"pgconn TestConnExecParamsContextCanceledAfterResponseBuffered": "it turns TLS off",
	}},
	{name: "pq", run: goTests("github.com/lib/pq", pq), least: 800, setup: []string{
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
	{name: "node-postgres", run: node, least: 200, fenced: map[string]string{
		"test/integration/client/query-error-handling-tests.js": "pg_stat_activity shows the check ahead of the query",
	}, encrypted: map[string]string{
		"test/integration/client/connection-timeout-tests.js": "its fake servers have no TLS",
		"test/integration/client/ssl-tests.js":                "it wants TLS, which the direct server doesn't have",
		"test/integration/connection-pool/error-tests.js":     "it destroys its own socket, and with TLS the driver tells the error twice",
		"test/integration/gh-issues/2627-tests.js":            "its fake server has no TLS",
		"test/integration/gh-issues/3174-tests.js":            "its fake servers have no TLS",
	}},
	{name: "psycopg2", run: python(unittests, "psycopg2", psycopg2, "PSYCOPG2_TESTDB="+database, "PSYCOPG2_TEST_REPL_DSN="), least: 400, setup: []string{"CREATE EXTENSION hstore"}, fenced: map[string]string{
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
	{name: "django", run: python(unittests, "django/tests", django), pool: "transaction", least: 4000},
	{name: "asyncpg", run: python(unittests, "asyncpg/tests", asyncpg), pool: "session", least: 200, timed: map[string]string{
		"test_execute.TestExecuteMany.test_executemany_server_failure_during_writes": "an error must come before 4 MB are sent, which buffers of two connections hold",
	}},
	{name: "dbd-pg", run: perl, pool: "session", least: 2000, checks: 30, timed: map[string]string{
		"t/02attribs.t": "it fails if one of it does",
		`t/02attribs.t DB handle attribute "pg_pid" returns a value`: "the process that PgBouncer tells is a random number, which may be negative",
	}},
	{name: "tokio-postgres", run: rust, pool: "session", plain: true, least: 80, setup: []string{
		"CREATE EXTENSION hstore", "CREATE EXTENSION citext", "CREATE EXTENSION ltree",
		"CREATE ROLE pass_user LOGIN PASSWORD 'password'", "CREATE ROLE scram_user LOGIN PASSWORD 'password'",
		"SET password_encryption = 'md5'; CREATE ROLE md5_user LOGIN PASSWORD 'password'",
	}},
	{name: "sqlalchemy-psycopg", run: sqlalchemy("psycopg", noRanges), least: 3416, setup: sqlalchemySetup, fenced: twoPhase},
	{name: "sqlalchemy-psycopg2", run: sqlalchemy("psycopg2", noRanges), least: 3406, setup: sqlalchemySetup, fenced: twoPhase},
	{name: "sqlalchemy-asyncpg", run: sqlalchemy("asyncpg", noRanges), least: 3415, setup: sqlalchemySetup},
	{name: "sqlalchemy-ranges", run: sqlalchemy("psycopg", "RangeRoundTripTest"), least: 7368, setup: sqlalchemySetup},
	{name: "pgjdbc", run: java, least: 6000, setup: []string{
		"CREATE EXTENSION hstore", "CREATE EXTENSION citext", "CREATE ROLE test LOGIN PASSWORD 'test'", "ALTER DATABASE regression OWNER TO test",
	}, fenced: xa},
}
