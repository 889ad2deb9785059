package wiretest

// Scripts of simple queries and of transactions.
var simpleScripts = []script{
	{name: "simple statements of all kinds", steps: []step{
		ready(1), simple("INSERT INTO t VALUES (1, 'a'), (2, 'b')"), simple("SELECT * FROM t ORDER BY id"), simple("UPDATE t SET v = 'c' RETURNING id, v"),
		simple("DELETE FROM t WHERE id = 1"), simple("SELECT write_one(7), twice(4)"), simple("WITH w AS (INSERT INTO t VALUES (9, 'w') RETURNING id) SELECT id FROM w"),
		simple("CREATE TABLE x.made(a int)"), simple("SELECT 1 AS a INTO x.into"), simple("EXPLAIN (COSTS off) SELECT 1"), simple("VALUES (1), (2)"),
		simple("TRUNCATE t"), simple("SHOW datestyle"), simple("SELECT nextval('numbers')"),
	}},
	{name: "several statements in one message", steps: []step{
		ready(1), simple("INSERT INTO t VALUES (1, 'a'); SELECT 1; UPDATE t SET v = 'b'; SELECT v FROM t"),
		simple("INSERT INTO t VALUES (2, 'a'); SELECT 1/0; INSERT INTO t VALUES (3, 'a')"), simple("SELECT 1; ; INSERT INTO t VALUES (4, 'd');"),
	}},
	{name: "blocks within a message", steps: []step{
		ready(1), simple("BEGIN; INSERT INTO t VALUES (1, 'a'); COMMIT; INSERT INTO t VALUES (2, 'b')"),
		simple("INSERT INTO t VALUES (3, 'c'); COMMIT; INSERT INTO t VALUES (3, 'd')"), simple("INSERT INTO t VALUES (4, 'c'); ROLLBACK; INSERT INTO t VALUES (5, 'd')"),
		simple("BEGIN; INSERT INTO t VALUES (6, 'e')"), simple("COMMIT AND CHAIN; INSERT INTO t VALUES (7, 'f')"), simple("ROLLBACK AND CHAIN; INSERT INTO t VALUES (8, 'g'); END"),
	}},
	{name: "blocks", steps: []step{
		ready(1), simple("BEGIN"), simple("INSERT INTO t VALUES (1, 'a')"), simple("BEGIN"), simple("COMMIT"), simple("COMMIT"), simple("ROLLBACK"),
		simple("START TRANSACTION ISOLATION LEVEL SERIALIZABLE"), simple("INSERT INTO t VALUES (2, 'b')"), simple("END"),
		simple("BEGIN READ ONLY"), simple("SELECT count(*) FROM t"), simple("COMMIT"),
		simple("BEGIN"), simple("SELECT 1/0"), simple("INSERT INTO t VALUES (3, 'c')"), simple("COMMIT"),
	}},
	{name: "savepoints", steps: []step{
		ready(1), simple("BEGIN"), simple("SAVEPOINT a"), simple("INSERT INTO t VALUES (1, 'a')"), simple("ROLLBACK TO a"), simple("INSERT INTO t VALUES (2, 'b')"),
		simple("SAVEPOINT b; INSERT INTO t VALUES (2, 'c')"), simple("ROLLBACK TO SAVEPOINT b; INSERT INTO t VALUES (3, 'd'); RELEASE b"),
		synced(run("SAVEPOINT c"), run("INSERT INTO t VALUES (4, 'e')"), run("ROLLBACK TO c"), run("INSERT INTO t VALUES (5, 'f')")), simple("COMMIT"),
		simple("SAVEPOINT d"), simple("INSERT INTO t VALUES (6, 'g'); SAVEPOINT e"),
	}},
	{name: "two-phase commit", steps: []step{
		ready(1), simple("BEGIN"), simple("INSERT INTO t VALUES (1, 'a')"), aboutTwoPhase("PREPARE TRANSACTION"), simple("ROLLBACK"), aboutTwoPhase("COMMIT PREPARED"),
	}, checked: twoPhase, held: twoPhase},
	{name: "warnings about a place in the text", steps: []step{
		ready(1), simple("SET standard_conforming_strings = off"), simple(`INSERT INTO t VALUES (1, 'a\'; SELECT 1; --')`),
		simple(`SELECT '\'', 1; INSERT INTO t VALUES (2, '\\'); SELECT 'é\''`), synced(run(`INSERT INTO t VALUES (3, 'c\'')`)),
	}},
	{name: "a procedure that commits, simple", steps: []step{ready(1), simple("CALL commits()"), simple("SELECT 1")}},
	{name: "batches that fail between a DO and the end of a transaction", steps: []step{
		ready(1), synced(run("DO $$BEGIN RAISE 'x'; END$$"), run("COMMIT")), simple("SELECT 1"),
		synced(run("DO $$BEGIN RAISE 'x'; END$$"), run("ROLLBACK")), synced(run("INSERT INTO t VALUES (1, 'a')")),
		synced(run("DO $$BEGIN PERFORM 1; END$$"), run("SELECT 1/0"), run("BEGIN"), run("COMMIT")), synced(run("INSERT INTO t VALUES (2, 'b')")),
		send(run("DO $$BEGIN RAISE 'x'; END$$"), run("COMMIT"), sync_, run("INSERT INTO t VALUES (3, 'c')"), sync_), ready(2),
	}},
	{name: "a procedure that commits, extended", steps: []step{ready(1), synced(run("CALL commits()")), simple("SELECT 1")}},
	{name: "a block of code", steps: []step{
		ready(1), simple("DO $$BEGIN INSERT INTO t VALUES (1, 'a'); END$$"), synced(run("DO $$BEGIN INSERT INTO t VALUES (2, 'b'); END$$")),
		synced(run("DO $$BEGIN RAISE NOTICE 'n'; END$$"), run("INSERT INTO t VALUES (3, 'c')")),
		simple("BEGIN"), synced(run("DO $$BEGIN INSERT INTO t VALUES (4, 'd'); END$$")), simple("COMMIT"),
	}},
	{name: "writes that may set a variable", steps: []step{
		ready(1), simple("INSERT INTO t SELECT 1, set_config('app.' || 'who', 'a', false) RETURNING v"), simple("SELECT write_one(2), set_config('app.' || 'who', 'b', true) -- the end"),
		simple("SELECT 1"), simple("INSERT INTO t SELECT 3, set_config('app.' || 'who', 'c', false); SELECT v FROM t ORDER BY id;"), simple("SELECT 1"),
		simple("INSERT INTO t SELECT 4, set_config('app.' || 'who', 'd', false), nowhere"), simple("SELECT 1"), simple("SELECT current_setting('app.who')"),
		synced(run("INSERT INTO t SELECT 5, set_config('app.' || 'who', 'e', false) RETURNING v")), synced(run("COPY (SELECT write_one(6), set_config('app.' || 'who', 'f', false)) TO STDOUT")),
		synced(parse("s", "SELECT write_one(i), set_config('app.' || 'who', i::text, false) FROM generate_series(7, 9) i"), bind("", "s"), describe('P', ""), execute("", 2), execute("", 0)),
		simple("DO $$BEGIN PERFORM set_config('app.who', 'g', false); INSERT INTO t VALUES (10, 'j'); END$$"), simple("SELECT 1"),
		simple("EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off, BUFFERS off) INSERT INTO t SELECT 11, set_config('app.' || 'who', 'h', false)"), simple("SELECT 1"),
	}},
	{name: "a block of code that may set a variable, and commits", steps: []step{
		ready(1), simple("DO $$BEGIN PERFORM set_config('app.who', 'a', false); COMMIT; END$$"), simple("SELECT 1"),
	}},
	{name: "maintenance", steps: []step{
		ready(1), simple("VACUUM t"), synced(run("VACUUM t")), simple("ANALYZE t"), simple("CHECKPOINT"), simple("REINDEX TABLE t"), synced(run("ANALYZE t")),
		simple("VACUUM t; SELECT 1"),
	}},
	{name: "what can't run in a transaction", steps: []step{
		ready(1), simple("CREATE INDEX CONCURRENTLY i ON t(v)"), synced(run("DROP INDEX CONCURRENTLY i")),
	}},
	{name: "what wants a block", steps: []step{
		ready(1), simple("DECLARE c CURSOR FOR SELECT 1"), simple("SELECT 1"),
	}, checked: declareSucceeds},
	{name: "a lock wants a block", steps: []step{ready(1), simple("LOCK TABLE t"), synced(run("LOCK TABLE t"))}},
	{name: "literals that look like comments", steps: []step{
		ready(1), simple(`SELECT '/*wirefence.token=''orders=1''*/', "v" AS "--wirefence.token='orders=1'" FROM t`),
		simple("INSERT INTO t VALUES (1, $$/*wirefence.token='orders=1'*/$$) RETURNING v"), simple(`SELECT E'\'/*wirefence.token='`),
		synced(run("INSERT INTO t VALUES (2, $1) RETURNING v", "/*wirefence.token='orders=1'*/")),
	}},
	{name: "copied and cursor names in other alphabets", steps: []step{
		ready(1), simple(`CREATE TABLE x."Tabelle mit Ü"(a int)`), simple(`INSERT INTO x."Tabelle mit Ü" VALUES (1) RETURNING a AS "größe"`),
		simple("SET client_encoding = 'LATIN1'"), simple("INSERT INTO t VALUES (1, '\xfc\xe4'); INSERT INTO t VALUES (2, n\xf6pe)"), simple("SELECT * FROM t"),
	}},
}

// aboutTwoPhase sends a command about a prepared transaction. Its name must be one's
// own: the databases of a server share them.
func aboutTwoPhase(command string) step {
	return func(p *peer) { p.T.Helper(); p.query(command + " '" + p.place.Name + "'") }
}
