package drivertest

import "testing"

// driver is a client of PostgreSQL that the matrix runs.
type driver struct {
	name string
	// binding says that the driver knows channel binding.
	binding bool
	// does is what its program does besides what all do.
	does string
	// lacks is what all others do and its users can't.
	lacks string
	// without are the carriers that the driver has no place for.
	without []carrier
	version func(*testing.T) string
	// start gets the environment of programs.
	start func(*testing.T, []string) runner
}

const (
	python = "/usr/bin/python3" // the distribution's, which its packages are for
	jar    = "/usr/share/java/postgresql.jar"
)

var drivers = []driver{
	{
		name: "psql", binding: true, does: "`\\copy`, `\\gexec`, `\\gdesc`, `FETCH_COUNT`, reconnect, Ctrl-C",
		version: output(`\d+\.\d+`, "psql", "--version"), start: startPsql,
	},
	{
		name: "pgbench", binding: true, does: "its built-in scripts and pipelines, simple, extended and prepared",
		lacks: "SQLSTATEs (it prints errors' texts), going on behind an error, cancelling, notifications, `COPY` but for `-i`; its built-in scripts take no comment, and no `SET` can go before them", without: []carrier{bySet},
		version: output(`\d+\.\d+`, "pgbench", "--version"), start: startPgbench,
	},
	{
		name: "libpq, pipeline mode", binding: true, does: "pipelines with errors in the middle, flush without sync, single row mode",
		lacks:   "the SQLSTATE of a large object's error: libpq gives its text alone",
		version: output(`\d+\.\d+`, "pg_config", "--version"), start: startC,
	},
	{
		name: "pgx", binding: true, does: "all five ways to run a statement, batches, pipelines, large objects, `pgxpool`",
		version: module("github.com/jackc/pgx/v5"), start: startPgx,
	},
	{
		name: "lib/pq", does: "`database/sql`, `CopyIn`, `Listener`",
		lacks:   "channel binding",
		version: module("github.com/lib/pq"), start: startPq,
	},
	{
		name: "psycopg2", binding: true, does: "named cursors, `execute_values`, large objects",
		lacks:   "the SQLSTATE of a large object's error: libpq gives its text alone",
		version: importing("psycopg2"), start: startPython("psycopg2"),
	},
	{
		name: "psycopg 3", binding: true, does: "pipeline mode, `executemany`, server-side cursors, binary copy",
		version: importing("psycopg"), start: startPython("psycopg3"),
	},
	{
		name: "SQLAlchemy", binding: true, does: "Core and ORM, nested transactions, streamed results, pools that reset",
		lacks:   "cancelling, hearing notifications",
		version: importing("sqlalchemy"), start: startPython("sqlalchemy"),
	},
	{
		name: "Django", binding: true, does: "the ORM, nested `atomic`, `bulk_create`, `iterator`, `select_for_update`",
		lacks:   "cancelling, hearing notifications",
		version: importing("django"), start: startPython("django"),
	},
	{
		name: "node-postgres", binding: true, does: "named statements, many queries at once, `pg-copy-streams`, `Pool`",
		version: npm("pg"), start: startNode("pg"),
	},
	{
		name: "postgres.js", does: "pipelined queries, savepoints, cursors, copy streams",
		lacks:   "channel binding",
		version: npm("postgres"), start: startNode("postgres"),
	},
	{
		name: "JDBC", does: "all four query modes, batches, `reWriteBatchedInserts`, fetch size, `CopyManager`, large objects by FunctionCall",
		lacks:   "channel binding, in the version tested",
		version: output(`\d+\.\d+\.\d+`, "java", "-jar", jar), start: startJava,
	},
	{
		name: "DBD::Pg", binding: true, does: "prepared statements, savepoints, asynchronous queries, copy, large objects",
		lacks:   "errors of `pg_lo_creat`, which returns nothing",
		version: output(`^\d+(\.\d+)+$`, "perl", "-MDBD::Pg", "-e", "print $DBD::Pg::VERSION"), start: startPerl,
	},
	{
		name: "Ruby pg", binding: true, does: "prepared statements, pipeline mode, copy, large objects",
		lacks:   "what was wrong with `lo_creat`: it only says that it failed",
		version: output(`^\d+(\.\d+)+$`, "ruby", "-e", "require 'pg'; print PG::VERSION"), start: startRuby,
	},
	{
		name: "PHP PDO", binding: true, does: "prepared statements, emulated and real, scrollable cursors, copy, large objects",
		lacks:   "cancelling; the SQLSTATE of a large object's error",
		version: output(`^\d+(\.\d+)+$`, "php", "-r", "echo phpversion('pdo_pgsql');"), start: startPHP,
	},
}

// need fails the test where a runtime is missing, and says what to install.
func need(t *testing.T, found bool, what string) {
	t.Helper()
	if !found {
		t.Fatalf("%s is not installed: run scripts/install-servers --all", what)
	}
}
