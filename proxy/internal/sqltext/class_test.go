package sqltext

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// classes has a statement for each kind of leading words, and its class.
var classes = map[string]Class{
	"SELECT 1": Ordinary, "(SELECT 1)": Ordinary, "((VALUES (1)))": Ordinary, "VALUES (1)": Ordinary, "TABLE pg_am": Ordinary,
	"WITH a AS (SELECT 1) TABLE a": Ordinary, "/* x */ -- y\n select 1": Ordinary, "sElEcT 1": Ordinary,
	"INSERT INTO c.t VALUES (1)": Ordinary, "UPDATE c.t SET a = 1": Ordinary, "DELETE FROM c.t": Ordinary, "TRUNCATE c.t": Ordinary,
	"COPY (SELECT 1) TO STDOUT": Ordinary, "EXPLAIN SELECT 1": Ordinary, "EXPLAIN ANALYZE INSERT INTO c.t VALUES (1)": Ordinary,
	"PREPARE p1 AS SELECT 1": Ordinary, "PREPARE transaction AS SELECT 1": Ordinary, "PREPARE transaction (int) AS SELECT $1": Ordinary, "EXECUTE p": Ordinary,
	"DECLARE d CURSOR WITH HOLD FOR SELECT 1": Ordinary, "FETCH c1": Ordinary, "MOVE c1": Ordinary, "CLOSE ALL": Ordinary,
	"LISTEN a": Ordinary, "UNLISTEN *": Ordinary, "NOTIFY a": Ordinary, "CHECKPOINT": Ordinary,
	"COMMENT ON TABLE c.t IS 'x'": Ordinary, "GRANT SELECT ON c.t TO PUBLIC": Ordinary, "REVOKE SELECT ON c.t FROM PUBLIC": Ordinary,
	"REASSIGN OWNED BY r1 TO r2": Ordinary, "REFRESH MATERIALIZED VIEW c.m": Ordinary, "REFRESH MATERIALIZED VIEW CONCURRENTLY c.m": Ordinary,
	"SET CONSTRAINTS ALL IMMEDIATE": Ordinary,
	"CREATE TABLE c.made (a int)":   Ordinary, "CREATE TABLE c.made AS SELECT 1": Ordinary, "CREATE TEMP TABLE made (a int)": Ordinary, "CREATE VIEW c.made AS SELECT 1": Ordinary,
	"CREATE INDEX ON c.t (a)": Ordinary, "CREATE UNIQUE INDEX ON c.t (a)": Ordinary, "DROP INDEX c.i": Ordinary, "CREATE SCHEMA made": Ordinary, "DROP TABLE c.t": Ordinary,
	"ALTER TABLE c.t ADD b int": Ordinary, "ALTER TABLE c.t RENAME a TO b": Ordinary, "CREATE SEQUENCE c.made": Ordinary, "CREATE ROLE made": Ordinary, "DROP ROLE r3": Ordinary,
	"ALTER DATABASE other SET work_mem = '1MB'": Ordinary, "ALTER DATABASE other RENAME TO made": Ordinary, "ALTER ROLE r1 SET work_mem = '1MB'": Ordinary,
	"ALTER TABLESPACE s1 RENAME TO s2":                                                     Ordinary,
	"CREATE OR REPLACE FUNCTION c.f() RETURNS int LANGUAGE sql AS 'SELECT 1'":              Ordinary,
	"CREATE OR REPLACE FUNCTION c.f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; END": Ordinary,

	"SAVEPOINT s": Savepoint, "BEGIN": Begins, "BEGIN ISOLATION LEVEL SERIALIZABLE": Begins, "START TRANSACTION READ ONLY": Begins,
	"COMMIT": Ends, "COMMIT AND CHAIN": Ends, "END": Ends, "END WORK": Ends, "ROLLBACK": Ends, "ROLLBACK WORK": Ends, "ABORT": Ends, "ROLLBACK AND CHAIN": Ends,
	"ROLLBACK TO s": Undoes, "ROLLBACK TO SAVEPOINT s": Undoes, "ROLLBACK WORK TO SAVEPOINT s": Undoes, "ROLLBACK TRANSACTION TO s": Undoes, "RELEASE s": Undoes, "RELEASE SAVEPOINT s": Undoes,
	"SET TRANSACTION READ ONLY": Precedes, "SET TRANSACTION SNAPSHOT 'x'": Precedes, "SET LOCAL TRANSACTION ISOLATION LEVEL SERIALIZABLE": Precedes,
	"LOCK c.t": Lock, "LOCK TABLE c.t IN SHARE MODE": Lock,
	"SET a.b = 'c'": Free, "SET LOCAL work_mem = '1MB'": Free, "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY": Free, "SET TIME ZONE 'UTC'": Free, "SET ROLE NONE": Free,
	"RESET ALL": Free, "RESET work_mem": Free, "SHOW work_mem": Free, "SHOW ALL": Free, "DEALLOCATE p": Free, "DEALLOCATE PREPARE ALL": Free,
	"SELECT set_config('a.b', 'c', false)": Free, "select PG_CATALOG . set_config ( $1 , $2 , $3 ) -- c": Free, "SELECT set_config('a.b', $1, TRUE)": Free,
	"SELECT pg_catalog.set_config('a.b', 'c', 'f')": Free, "SELECT set_config('a.b', 'c', 'f')": Ordinary, "SELECT set_config($$a.b$$, 'c''d', false)": Free,
	"SELECT set_config('wirefence.token', $1, true)": Free, "SELECT pg_catalog.set_config('wirefence.token', $1, $2)": Free, // as clients' hooks send it
	"SELECT text.set_config('a.b', 'c', false)": Ordinary, `SELECT "set_config"('a.b', 'c', false)`: Ordinary, `SELECT "pg_catalog".set_config('a.b', 'c', false)`: Ordinary,
	"SELECT set_config('a.b', 'c', false), 1": Ordinary, "SELECT set_config('a.b', 'c', false) AS x": Ordinary, "SELECT set_config('a.b'::text, 'c', false)": Ordinary,
	"SELECT set_config('a.b', E'c', false)": Ordinary, `SELECT set_config('a.b', 'c\d', false)`: Ordinary, "SELECT set_config('a.b', 'c', false) FROM c.t": Ordinary,
	"SELECT set_config('a.b', 'c', NULL)": Ordinary, "SELECT set_config('a.b', ('c'), false)": Ordinary, "(SELECT set_config('a.b', 'c', false))": Ordinary,
	"DISCARD ALL": Discards, "DISCARD TEMP": Discards, "DISCARD PLANS": Discards,
	"PREPARE TRANSACTION 'x'": PreparesTransaction, "PREPARE TRANSACTION E'x'": PreparesTransaction, "COMMIT PREPARED 'x'": EndsPrepared, "ROLLBACK PREPARED 'x'": EndsPrepared,

	"ANALYZE c.t": Alone, "ANALYSE c.t": Alone,
	"CALL c.commits()": Alone, "DO 'BEGIN COMMIT; END'": Alone, "VACUUM c.t": Alone, "VACUUM (ANALYZE) c.t": Alone,
	"REINDEX TABLE CONCURRENTLY c.t": Alone, "REINDEX INDEX c.i": Alone, "REINDEX SYSTEM postgres": Alone, "CLUSTER": Alone,
	"CREATE INDEX CONCURRENTLY ON c.t (a)": Alone, "CREATE UNIQUE INDEX CONCURRENTLY ON c.t (a)": Alone, "DROP INDEX CONCURRENTLY c.i": Alone,
	"ALTER TABLE c.parted DETACH PARTITION c.part CONCURRENTLY": Alone,
	"CREATE DATABASE made": Alone, "DROP DATABASE other": Alone, "ALTER DATABASE other SET TABLESPACE pg_default": Alone,
	"CREATE TABLESPACE made LOCATION '/nowhere'": Alone, "DROP TABLESPACE s1": Alone, "ALTER SYSTEM SET work_mem = '4MB'": Alone,
	"CREATE SUBSCRIPTION made CONNECTION '' PUBLICATION p": Alone, "DROP SUBSCRIPTION made": Alone, "ALTER SUBSCRIPTION made REFRESH PUBLICATION": Alone,
	"FROBNICATE": Alone, "$1": Alone, "WAIT FOR LSN '0/0'": Alone,
}

// ownCalls are calls of Wirefence's functions, and what isn't one call with constants alone.
var ownCalls = map[string]Class{
	"SELECT wirefence.proxy_hold($2, $1, NULL, $3, false, 'group')": Free, "SELECT wirefence.proxy_unhold('-1', '{42}')": Free, "SELECT wirefence.proxy_unhold('-1', NULL)": Free,
	"SELECT wirefence.proxy_unhold(1), f()": Ordinary, "SELECT wirefence.proxy_hold(f())": Ordinary, "SELECT wirefence.proxy_hold(d 'a=1')": Ordinary,
	"SELECT wirefence.proxy_hold('a' || b)": Ordinary, "SELECT wirefence.proxy_hold(-1, NULL)": Ordinary, "SELECT wirefence.proxy_unhold() FROM f": Ordinary, "SELECT wirefence.check('a=1')": Ordinary,
}

func TestClasses(t *testing.T) {
	all := maps.Clone(classes)
	maps.Copy(all, ownCalls)
	for sql, want := range all {
		if got := scanOne(t, sql); got.Class != want {
			t.Errorf("%s: class %d, want %d", sql, got.Class, want)
		}
	}
}

// inBlock is what an Alone statement is refused with behind a check. Those of the
// second list run there at times, which does no harm.
const inBlock, inFunction = "25001", "2D000"

var runsAtTimes = map[string]bool{
	"ANALYZE c.t": true, "ANALYSE c.t": true, // with all its locks to the end
	"REINDEX INDEX c.i": true,                                         // it needs to stand alone for a partitioned index only
	"FROBNICATE":        true, "$1": true, "WAIT FOR LSN '0/0'": true, // syntax errors in these versions
	"ALTER SUBSCRIPTION made REFRESH PUBLICATION":          true, // where there is none
	"CREATE SUBSCRIPTION made CONNECTION '' PUBLICATION p": true, "DROP SUBSCRIPTION made": true,
}

const classSetup = `DROP SCHEMA IF EXISTS c, text CASCADE; CREATE SCHEMA text;
	CREATE FUNCTION text.set_config(a text, b text, c boolean) RETURNS text LANGUAGE sql AS 'SELECT a';
	CREATE SCHEMA c; CREATE TABLE c.t (a int PRIMARY KEY); CREATE INDEX i ON c.t (a);
	CREATE MATERIALIZED VIEW c.m AS SELECT 1 AS a; CREATE UNIQUE INDEX ON c.m (a);
	CREATE TABLE c.parted (a int) PARTITION BY LIST (a); CREATE TABLE c.part PARTITION OF c.parted FOR VALUES IN (1);
	CREATE PROCEDURE c.commits() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'`

// Behind another statement of one text, as behind a check, real servers run what is
// Ordinary, and refuse what is Alone.
func TestClassesOnServers(t *testing.T) {
	forEachServer(t, func(t *testing.T, major int, conn *pgconn.PgConn) {
		mustRun(t, conn, `CREATE ROLE r1`)
		mustRun(t, conn, `CREATE ROLE r2`)
		mustRun(t, conn, `CREATE ROLE r3`)
		mustRun(t, conn, `CREATE DATABASE other`)
		mustRun(t, conn, `SET allow_in_place_tablespaces = on`)
		mustRun(t, conn, `CREATE TABLESPACE s1 LOCATION ''`)
		mustRun(t, conn, classSetup)
		for sql, class := range classes {
			if class != Ordinary && class != Alone {
				continue
			}
			_, _ = run(t, conn, "ROLLBACK")
			if class == Ordinary {
				mustRun(t, conn, "DEALLOCATE ALL; PREPARE p AS SELECT 1; BEGIN; DECLARE c1 CURSOR FOR SELECT 1")
				if _, state := run(t, conn, "SELECT 1; "+sql); state != "" {
					t.Errorf("behind another statement of a block, %s is refused with %s", sql, state)
				}
				continue
			}
			if _, state := run(t, conn, "SELECT 1; "+sql); state != inBlock && state != inFunction && !runsAtTimes[sql] {
				t.Errorf("behind another statement of its text, %s is answered with %q", sql, state)
			}
		}
	})
}

// A call of the class Free is one of pg_catalog's function, whatever functions of this name a
// schema behind it has.
func TestFreeCallsOnServers(t *testing.T) {
	forEachServer(t, func(t *testing.T, _ int, conn *pgconn.PgConn) {
		for _, last := range []string{"text", "int", "name"} {
			mustRun(t, conn, "CREATE OR REPLACE FUNCTION public.set_config(text, text, "+last+") RETURNS text LANGUAGE sql AS $$ SELECT 'public'::text $$")
		}
		const overloaded = "SELECT set_config('a.b', 'c', 'f')"
		for sql, class := range classes {
			if !strings.Contains(strings.ToLower(sql), "set_config") || class != Free && sql != overloaded || strings.Contains(sql, "$1") {
				continue
			}
			results, err := conn.Exec(context.Background(), sql).ReadAll()
			if err != nil || string(results[0].Rows[0][0]) == "public" != (sql == overloaded) {
				t.Errorf("%s: %v, %v", sql, err, results)
			}
		}
	})
}

// flagged has statements and their flags.
var flagged = map[string]Flags{
	"SELECT 1": 0, "SELECT 'wire' || 'fence'": 0, "SHOW x": 0, "SET a.b = 'c'": 0, "SELECT * FROM wirefence_jobs": 0, "SELECT 'mywirefence'": 0,

	"SET wirefence.token = 'a=1'":          Sets,
	"SET SESSION WireFence.Token TO 'a=1'": Sets, `SET "wirefence.token" = 'a=1'`: Sets, "SET wirefence . token = ''": Sets,
	"SET LOCAL wirefence.token = 'a=1'": Sets | Local, "SET LOCAL work_mem = '1MB'": Local, "RESET wirefence.token": SetsVariable | Cleans,
	"SHOW wirefence.token": SetsVariable, // it doesn't, but names it

	"SET application_name = 'psql'": Renames, "SET LOCAL application_name TO DEFAULT": Renames | Local, "RESET application_name": Renames | Cleans,
	"SET Application_Name = 'wirefence:orders=34~job'":        Renames | SetsVariable,
	"SELECT set_config('application_name', $1, false)":        Renames | CallsSetter,
	"SELECT application_name FROM pg_stat_activity":           0,
	"DO $$ BEGIN SET LOCAL application_name = 'psql'; END $$": Renames,

	"RESET ALL": Resets | Cleans, "reset all": Resets | Cleans, "DISCARD ALL": Resets | DropsPrepared | Unlocks | Cleans, "DISCARD PLANS": Cleans, "DISCARD TEMP": Cleans,
	"SELECT set_config('wirefence.token', 'a=1', false)":                                       Sets,
	"SELECT set_config('wirefence.token', 'a=1', true)":                                        Sets | Local,
	"SELECT set_config('wirefence.token', 'a=1', true), 2":                                     Sets,
	"SELECT set_config('wirefence.token', 'a=1', $1)":                                          Sets,
	"SELECT set_config('wirefence.token', f('x', true), false)":                                Sets,
	"SELECT set_config('wirefence.token', '', true), set_config('wirefence.token', '', false)": Sets,
	"INSERT INTO t SELECT set_config('wirefence.token', '', true)":                             Sets,
	"SELECT pg_catalog.set_config ( 'wirefence.token' , '', false)":                            Sets,
	"DO 'perform set_config(''wirefence.token'', x, false)'":                                   Sets,
	"ALTER ROLE app SET wirefence.token = 'a=1'":                                               SetsVariable,

	// What ORMs and migrations send, and is nothing of ours.
	"SELECT set_config('work_mem', '1MB', true)":           Local | CallsSetter,
	"SELECT set_config(lower('App.x'), '1', false)":        CallsSetter,
	"SELECT set_config($1, $2, true)":                      Local | CallsSetter, // PostgREST
	"SELECT my_set_config(a, b)":                           0,
	"SELECT 'see set_config in the manual'":                CallsSetter,
	"COMMENT ON FUNCTION f() IS 'set_config'":              CallsSetter,
	"UPDATE pg_settings SET setting = '' WHERE name = 'x'": 0,
	`SELECT 1 AS U&"caf\00e9"`:                             0,

	"SELECT pg_advisory_unlock(1)": Locks, "SELECT pg_advisory_unlock_all()": Unlocks | Cleans, "SELECT pg_advisory_unlock_shared(1, 2)": Unlocks, "SELECT pg_try_advisory_lock(1)": Locks, "SELECT pg_advisory_xact_lock(1)": 0,
	`SELECT "pg_advisory_unlock_all"()`: Unlocks, "SELECT PG_ADVISORY_UNLOCK_ALL(), 1": Unlocks, "DO 'perform pg_advisory_unlock_all()'": Unlocks,
	"DO 'discard all'": Unlocks, "SELECT discard, 'discarded' FROM t": 0, "SELECT wirefence.proxy_unhold('1', NULL)": SetsVariable,

	"select Pg_Catalog . Pg_Advisory_Unlock_All ( ) -- c": Unlocks | Cleans, "SELECT app.pg_advisory_unlock_all()": Unlocks, "SELECT pg_advisory_unlock_all() AS a": Unlocks,
	"CLOSE ALL": Cleans, "CLOSE c": Cleans, "UNLISTEN *": Cleans, "RESET a.b": Cleans, "RESET SESSION AUTHORIZATION": Cleans,
	"SET SESSION AUTHORIZATION DEFAULT": Cleans, "SET SESSION AUTHORIZATION app": 0, "SET search_path TO wirefence, public": SetsVariable,

	"EXECUTE p": Runs, "EXPLAIN ANALYZE EXECUTE p": 0, "FETCH c": 0, "DO 'execute x'": 0,
	"PREPARE p AS SELECT 1": Stores, "DECLARE c CURSOR FOR SELECT 1": Stores, "PREPARE p AS SELECT pg_advisory_unlock_all()": Stores | Unlocks,
	"PREPARE p AS SELECT set_config('wirefence.token', '', false)": Stores | Sets,
	"PREPARE TRANSACTION 'x'":                                      0, "PREPARE TRANSACTION 'wirefence'": SetsVariable,

	"SET TRANSACTION SNAPSHOT 'x'": Imports, "SET TRANSACTION READ ONLY": 0, "DEALLOCATE ALL": DropsPrepared | Cleans, "DEALLOCATE PREPARE ALL": DropsPrepared | Cleans, "DEALLOCATE p": Cleans, `DEALLOCATE "all"`: Cleans,
	"SET LOCAL TRANSACTION SNAPSHOT 'x'": Imports | Local,
	"COMMIT":                             Commits, "END AND CHAIN": Commits | Chains, "COMMIT WORK AND CHAIN": Commits | Chains, "COMMIT AND NO CHAIN": Commits, "ROLLBACK TRANSACTION AND CHAIN": Chains, "ABORT": 0,
}

func TestFlags(t *testing.T) {
	for sql, want := range flagged {
		if got := scanOne(t, sql); got.Flags != want {
			t.Errorf("%s: flags %b, want %b", sql, got.Flags, want)
		}
	}
}

// A DEALLOCATE has the name of a prepared statement, if its characters are as written.
func TestNames(t *testing.T) {
	for sql, want := range map[string]string{
		"DEALLOCATE P": "P", "DEALLOCATE PREPARE p": "p", "DEALLOCATE prepare": "prepare", "DEALLOCATE PREPARE prepare": "prepare",
		`DEALLOCATE "all"`: "all", `DEALLOCATE PREPARE "p 1"`: "p 1", `DEALLOCATE "P"`: "", `DEALLOCATE "a""b"`: "", "DEALLOCATE é": "", `DEALLOCATE U&"\0061"`: "",
		"PREPARE p AS SELECT 1": "", "EXECUTE p": "", "SELECT 1": "",
	} {
		st := scanOne(t, sql)
		if got := sql[st.NameStart:st.NameEnd]; got != want {
			t.Errorf("%s: name %s, want %s", sql, got, want)
		}
	}
}

// Command words what a message calls a statement.
func TestCommand(t *testing.T) {
	for sql, want := range map[string]string{
		"call p()": "CALL", "DO $$x$$": "DO", "create index concurrently i on t (a)": "CREATE INDEX CONCURRENTLY", "create unique index i on t (a)": "CREATE UNIQUE",
		"vacuum full t": "VACUUM", "prepare transaction 'x'": "PREPARE TRANSACTION", "(select 1)": "the statement", "": "the statement", "alter system set x = 1": "ALTER SYSTEM",
		"commit prepared 'x'": "COMMIT PREPARED",
	} {
		if got := Command([]byte(sql)); got != want {
			t.Errorf("%q: %q, want %q", sql, got, want)
		}
	}
}
