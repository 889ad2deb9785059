package parsertest

// changes writes a statement that changes data.
func (w *writer) changes() {
	w.depth--
	defer func() { w.depth++ }()
	switch w.pick("insert", "update", "delete", "merge") {
	case "insert":
		w.put("INSERT", "INTO", w.table(), w.pick("", "( a , b )", "AS abs ( a )"))
		switch {
		case w.chance(4):
			w.put("DEFAULT", "VALUES")
		case w.depth > 0:
			w.query()
		default:
			w.put("VALUES", "(", "1", ")")
		}
		w.put(w.pick("", "ON CONFLICT DO NOTHING", "ON CONFLICT ( a ) DO UPDATE SET b = 'x'"))
	case "update":
		w.put("UPDATE", w.table(), "SET", "a", "=")
		w.expression()
		w.put(w.pick("", "FROM t", "WHERE CURRENT OF c1"))
	case "delete":
		w.put("DELETE", "FROM", w.table(), w.pick("", "USING t", "WHERE a = 1"))
	default:
		w.put("MERGE", "INTO", "t", "USING", "log", "ON", "true", "WHEN", "MATCHED", "THEN", w.pick("DELETE", "UPDATE SET a = 1", "DO NOTHING"))
		return
	}
	w.put(w.pick("", "RETURNING *", "RETURNING a AS into"))
}

// statement writes any statement.
func (w *writer) statement() {
	switch {
	case w.chance(2):
		w.query()
	case w.chance(4):
		if w.chance(4) {
			w.with()
		}
		w.changes()
	case w.chance(2):
		w.holds()
	default:
		w.put(w.pick(fixed...))
	}
}

// holds writes a statement that holds another one.
func (w *writer) holds() {
	switch w.pick("explain", "copy", "declare", "prepare", "create", "function", "execute", "do") {
	case "explain":
		w.put("EXPLAIN", w.pick("", "ANALYZE", "VERBOSE", "ANALYZE VERBOSE", "analyse", "( ANALYZE )", "( COSTS OFF , ANALYZE on )", "( analyze off )",
			"( \"analyze\" )", "( \"costs\" off )", "( U&\"\\0061nalyze\" )", "( FORMAT json , VERBOSE )", "( ANALYZE 'false' )", "( timing , analyze 1 )"))
		switch {
		case w.chance(2):
			w.query()
		case w.chance(2):
			w.changes()
		default:
			w.put(w.pick("EXECUTE p ( writes(1) )", "EXECUTE p", "EXECUTE p ( abs(1) )", "CREATE TABLE made AS SELECT 1", "DECLARE c CURSOR FOR SELECT writes(1)",
				"CREATE MATERIALIZED VIEW made AS SELECT 1", "REFRESH MATERIALIZED VIEW made", "( SELECT 1 )", "CREATE TABLE made AS EXECUTE p ( nextval('s') )"))
		}
	case "copy":
		if w.chance(2) {
			w.put("COPY", "(")
			if w.chance(3) {
				w.changes()
			} else {
				w.query()
			}
			w.put(")")
		} else {
			w.put("COPY", w.pick("t", "app.t", "t ( a , b )", "writes ( a )", "\"from\"", "\"to\" ( \"stdout\" )"))
		}
		w.put(w.pick("TO STDOUT", "TO STDOUT", "to stdout WITH ( FORMAT csv , FORCE_QUOTE ( a ) )", "FROM STDIN", "TO '/tmp/x'", "TO PROGRAM 'cat'",
			"TO STDOUT CSV HEADER FORCE QUOTE a", "TO stdin", "FROM STDOUT"))
	case "declare":
		w.put("DECLARE", "c1", w.pick("", "BINARY", "NO SCROLL"), "CURSOR", w.pick("", "WITH HOLD"), "FOR")
		w.query()
	case "prepare":
		w.put("PREPARE", w.pick("p", "transaction", "\"p;\""), w.pick("", "( int , text )"), "AS")
		w.query()
	case "create":
		w.put("CREATE", w.pick("TABLE made AS", "TEMP TABLE made ( a ) AS", "VIEW made AS", "OR REPLACE VIEW made ( a ) AS", "MATERIALIZED VIEW made AS",
			"RULE r AS ON INSERT TO t DO ALSO"))
		w.query()
	case "function":
		w.put("CREATE", w.pick("", "OR REPLACE"), w.pick("FUNCTION made ( a int )  RETURNS int", "PROCEDURE made ( )"), "BEGIN", "ATOMIC")
		for range 2 {
			w.query()
			w.put(";")
		}
		w.put(w.pick("", "SELECT CASE WHEN true THEN 1 END ;", "SELECT 1 AS end ;"), "END")
	case "execute":
		w.put("EXECUTE", "p", "(")
		w.list(w.expression, 2)
		w.put(")")
	default:
		w.put("DO", w.pick("", "LANGUAGE plpgsql"), w.literal())
	}
}

// fixed are statements without a part to be made up.
var fixed = []string{
	"BEGIN", "START TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY", "COMMIT", "END WORK", "ROLLBACK", "ABORT AND CHAIN", "SAVEPOINT a", "RELEASE SAVEPOINT a",
	"ROLLBACK TO a", "PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'", "ROLLBACK PREPARED 'x'", "SET a.b = 'c'", "SET LOCAL work_mem TO '1MB'", "SET TIME ZONE 'UTC'",
	"SET search_path = app, public", "SET SESSION AUTHORIZATION DEFAULT", "RESET ALL", "RESET work_mem", "SHOW ALL", "SHOW TIME ZONE", "SET CONSTRAINTS ALL IMMEDIATE",
	"DISCARD ALL", "DEALLOCATE p", "DEALLOCATE PREPARE ALL", "LISTEN a", "UNLISTEN *", "NOTIFY a , 'b;'", "FETCH NEXT FROM c1", "MOVE BACKWARD ALL IN c1", "CLOSE ALL",
	"CLOSE c1", "LOCK TABLE t IN SHARE MODE NOWAIT", "LOAD 'x'", "CHECKPOINT", "VACUUM ( FULL , ANALYZE ) t ( a )", "VACUUM", "ANALYZE t ( a , b )", "REINDEX TABLE CONCURRENTLY t",
	"CLUSTER t USING i", "TRUNCATE t , log RESTART IDENTITY", "CALL proc ( )", "CALL app.proc ( abs ( 1 ) )", "CREATE TABLE made ( a int PRIMARY KEY , b text DEFAULT lower ( 'x' ) )",
	"CREATE INDEX ON t ( lower ( b ) )", "CREATE UNIQUE INDEX CONCURRENTLY i ON t ( a )", "DROP INDEX CONCURRENTLY i", "ALTER TABLE t ADD COLUMN d int DEFAULT 1",
	"ALTER TABLE t DETACH PARTITION p CONCURRENTLY", "DROP TABLE IF EXISTS t CASCADE", "GRANT SELECT ON t TO public", "REVOKE ALL ON t FROM public", "COMMENT ON TABLE t IS 'x;--'",
	"CREATE SEQUENCE q", "ALTER SYSTEM SET work_mem = '1MB'", "CREATE DATABASE d", "ALTER DATABASE d SET TABLESPACE x", "DROP TABLESPACE x", "REFRESH MATERIALIZED VIEW made",
	"CREATE FUNCTION made ( ) RETURNS int LANGUAGE sql RETURN 1", "CREATE FUNCTION made ( ) RETURNS int LANGUAGE sql AS $$ select 1; $$", "SECURITY LABEL ON TABLE t IS 'x'",
	"CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION trig ( )", "ALTER ROLE r SET work_mem = '1MB'", "REASSIGN OWNED BY a TO b", "DROP OWNED BY a",
	"IMPORT FOREIGN SCHEMA x FROM SERVER y INTO z", "CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p", "CREATE RULE r AS ON INSERT TO t DO ALSO ( SELECT 1 ; SELECT 2 )",
	"CREATE SCHEMA made CREATE TABLE a ( b int ) CREATE VIEW c AS SELECT 1", "CREATE STATISTICS s ON a , b FROM t", "CREATE TABLE made PARTITION OF t FOR VALUES IN ( 1 )", "",
}
