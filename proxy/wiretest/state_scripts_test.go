package wiretest

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Scripts of what a session keeps, and of what comes unasked.
var stateScripts = []script{
	{name: "11 two ParameterStatus in one reply", steps: []step{
		ready(1), simple("SET client_encoding = 'LATIN1'; SET datestyle = 'German'; SET application_name = 'two'"), simple("RESET ALL"),
		synced(run("SET timezone = 'Asia/Tokyo'"), run("SET datestyle = 'SQL'"), run("SELECT now() IS NULL")),
		simple("BEGIN; SET LOCAL datestyle = 'German'; SET LOCAL timezone = 'UTC'"), simple("COMMIT"),
	}},
	{name: "11 standard_conforming_strings", steps: []step{
		ready(1), simple("SET standard_conforming_strings = off; SET escape_string_warning = off"), simple(`INSERT INTO t VALUES (1, 'a\'b'), (2, '\\')`),
		simple(`SELECT * FROM t WHERE v = 'a\'b'`), synced(run(`UPDATE t SET v = '\'' WHERE id = 2`)), simple("RESET standard_conforming_strings"), simple(`INSERT INTO t VALUES (3, 'a\')`),
		send(q("SET standard_conforming_strings = off"), q(`INSERT INTO t VALUES (4, '\'')`), q("SET standard_conforming_strings = on"), q(`INSERT INTO t VALUES (5, '\')`)), ready(4),
	}},
	{name: "11 notices", steps: []step{
		ready(1), simple("SELECT say('one'), say('two')"), synced(run("SELECT say('three')"), run("DROP TABLE IF EXISTS nowhere")), simple("DROP TABLE IF EXISTS nowhere; SELECT 1"),
		simple("INSERT INTO t VALUES (1, 'a'); SELECT say('four')"), simple("SET client_min_messages = error"), simple("SELECT say('five')"),
		simple("SET client_min_messages = debug1; RESET client_min_messages"),
	}},
	{name: "11 NOTIFY while idle", steps: []step{
		ready(1), simple("LISTEN news"), elsewhere("NOTIFY news, 'from elsewhere'"), until('A'), elsewhere("NOTIFY news, 'again'; NOTIFY news, 'and again'"), until('A'), until('A'),
		simple("SELECT 1"),
	}},
	{name: "11 NOTIFY in a block", steps: []step{
		ready(1), simple("LISTEN news"), simple("BEGIN"), elsewhere("NOTIFY news, 'held back'"), simple("SELECT 1"), simple("COMMIT"), simple("UNLISTEN *"), elsewhere("NOTIFY news, 'unheard'"), simple("SELECT 2"),
	}},
	{name: "18 LISTEN and NOTIFY of one session", steps: []step{
		ready(1), simple("LISTEN news"), simple("NOTIFY news, 'mine'"), synced(run("NOTIFY news, 'a'"), run("NOTIFY news, 'b'")), simple("SELECT pg_notify('news', 'c')"),
		simple("BEGIN; NOTIFY news; ROLLBACK"), simple("SELECT pg_listening_channels()"),
	}},
	{name: "18 SET lives on", steps: []step{
		ready(1), simple("SET search_path = x, public"), simple("SHOW search_path"), simple("SET my.own = 'v'"), synced(run("SELECT current_setting('my.own')")),
		simple("BEGIN; SET work_mem = '1MB'; ROLLBACK"), simple("SHOW work_mem"), simple("SELECT set_config('my.own', 'w', false)"), simple("SHOW my.own"), simple("SET SESSION AUTHORIZATION DEFAULT"),
		simple("SET ROLE none"), simple("RESET my.own"),
	}},
	{name: "18 temporary tables", steps: []step{
		ready(1), simple("CREATE TEMP TABLE mine(a int)"), simple("INSERT INTO mine VALUES (1)"), synced(run("SELECT * FROM mine")),
		simple("CREATE TEMP TABLE till(a int) ON COMMIT DROP"), simple("SELECT * FROM till"), simple("CREATE TEMP TABLE t AS SELECT 5 AS id"), simple("SELECT * FROM t"), simple("DROP TABLE pg_temp.t"),
	}},
	{name: "18 advisory locks", steps: []step{
		ready(1), simple("SELECT pg_advisory_lock(4711)"), simple("SELECT pg_try_advisory_lock(4711)"), synced(run("SELECT pg_advisory_unlock(4711)")),
		simple("SELECT pg_advisory_unlock(4711)"), simple("SELECT pg_advisory_unlock(4711)"), simple("SELECT pg_advisory_xact_lock(1)"),
	}},
	{name: "18 cursors", steps: []step{
		ready(1), simple("INSERT INTO t SELECT i, 'c' FROM generate_series(1, 5) i"),
		simple("BEGIN; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id"), simple("FETCH 2 FROM c"), simple("MOVE 1 IN c"), synced(run("FETCH ALL FROM c")), simple("UPDATE t SET v = 'd' WHERE id = 1"), simple("COMMIT"),
		simple("DECLARE h CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY id"), simple("FETCH 2 FROM h"), synced(run("FETCH 2 FROM h")), simple("CLOSE h"), simple("FETCH h"),
		simple("BEGIN; DECLARE w CURSOR FOR SELECT write_one(70)"), simple("FETCH w"), simple("CLOSE w; COMMIT"),
	}},
	{name: "18 prepared statements of SQL", steps: []step{
		ready(1), simple("PREPARE p(int) AS INSERT INTO t VALUES ($1, 'p') RETURNING id"), simple("EXECUTE p(1)"), synced(run("EXECUTE p(2)")), simple("EXECUTE p(1)"),
		synced(describe('S', "p")), synced(bind("", "p", "3"), execute("", 0)), simple("DEALLOCATE p"), simple("EXECUTE p(4)"),
		synced(parse("e", "SELECT twice($1)")), simple("EXECUTE e(21)"), simple("DEALLOCATE e"), synced(bind("", "e", "1")),
		simple("PREPARE r AS SELECT 1"), simple("EXPLAIN (COSTS off) EXECUTE r"), simple("SELECT name FROM pg_prepared_statements WHERE name !~ '^_wirefence'"),
	}},
	{name: "18 DISCARD ALL and DEALLOCATE ALL", steps: []step{
		ready(1), synced(parse("s", "INSERT INTO t VALUES (1, 's')"), bind("", "s"), execute("", 0)), simple("LISTEN news; SET work_mem = '2MB'"),
		simple("DISCARD ALL"), synced(bind("", "s")), simple("SHOW work_mem"), synced(run("INSERT INTO t VALUES (2, 'u')")),
		synced(parse("s", "INSERT INTO t VALUES (3, 's')")), simple("DEALLOCATE ALL"), synced(bind("", "s")), synced(run("INSERT INTO t VALUES (4, 'v')")),
		synced(run("DISCARD ALL")), synced(run("INSERT INTO t VALUES (5, 'w')")),
		send(q("DISCARD ALL"), run("INSERT INTO t VALUES (6, 'x')"), sync_, run("DEALLOCATE ALL"), run("INSERT INTO t VALUES (7, 'y')"), sync_, run("INSERT INTO t VALUES (8, 'z')"), sync_), ready(4),
		simple("DISCARD PLANS; DISCARD SEQUENCES; DISCARD TEMP"), simple("BEGIN; DISCARD ALL"), simple("ROLLBACK"),
	}},
	{name: "18 DEALLOCATE ALL between transactions of a batch", steps: []step{
		ready(1), synced(run("BEGIN"), run("INSERT INTO t VALUES (1, 'a')"), run("DEALLOCATE ALL"), run("COMMIT"), run("INSERT INTO t VALUES (2, 'b')")),
		synced(run("BEGIN"), run("SAVEPOINT a"), run("INSERT INTO t VALUES (3, 'c')"), run("DEALLOCATE ALL"), run("ROLLBACK TO a"), run("INSERT INTO t VALUES (4, 'd')"), run("COMMIT")),
		synced(run("INSERT INTO t VALUES (5, 'e')")),
	}},
	{name: "18 DEALLOCATE ALL in a batch that an older answer overtakes", steps: []step{
		ready(1), synced(run("INSERT INTO t VALUES (1, 'a')")),
		send(q("SELECT 1"), run("DEALLOCATE ALL")), until('Z'), send(run("INSERT INTO t VALUES (2, 'b')"), sync_), ready(1),
		synced(run("INSERT INTO t VALUES (3, 'c')")),
	}},
	{name: "11 a setting of the lexer in a batch that an older answer overtakes", steps: []step{
		ready(1), send(q("SELECT 1"), run("SET standard_conforming_strings = off"), run("SET escape_string_warning = off")), until('Z'),
		send(run(`INSERT INTO t VALUES (1, 'a\'b')`), sync_), ready(1),
	}, checked: readsDifferently, held: readsDifferently},
	{name: "11 RESET ALL in a batch before a backslash", steps: []step{
		ready(1), synced(run("RESET ALL"), run(`INSERT INTO t VALUES (1, 'a\b')`)),
	}, checked: readsDifferently, held: readsDifferently},
	{name: "functions and views that change", steps: []step{
		ready(1), simple("CREATE FUNCTION x.f() RETURNS int LANGUAGE sql STABLE AS 'SELECT 1'"), simple("SELECT x.f()"),
		simple("CREATE OR REPLACE FUNCTION x.f() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT public.write_one(50)'"), simple("SELECT x.f()"),
		simple("CREATE VIEW x.v AS SELECT id FROM public.t"), synced(run("SELECT * FROM x.v")), simple("DROP FUNCTION x.f"), simple("SELECT x.f()"),
	}},
	{name: "16 function calls", steps: []step{
		ready(1),
		send(fastpath(177, "2", "3")), ready(1), // int4pl
		send(fastpath(177, "2", "x")), ready(1), send(fastpath(1, "2")), ready(1), send(fastpath(177, "2")), ready(1),
		simple("BEGIN"), send(fastpath(177, "4", "5")), ready(1), send(fastpath(154, "1", "0")), ready(1), send(fastpath(177, "4", "5")), ready(1), simple("COMMIT"),
		send(fastpath(177, "6", "7"), fastpath(177, "8", "9"), q("SELECT 1")), ready(3),
	}},
	{name: "16 function calls that write", steps: []step{
		ready(1), largeObject, simple("SELECT count(*) FROM pg_largeobject_metadata WHERE oid = 4242"),
		simple("BEGIN"), send(fastpath(964, "4242")), ready(1), simple("ROLLBACK"), simple("SELECT count(*) FROM pg_largeobject_metadata WHERE oid = 4242"),
		send(fastpath(964, "4242")), ready(1), send(fastpath(964, "4242")), ready(1), simple("SELECT 1"),
	}},
	{name: "16 a function call in the middle of a batch", steps: []step{
		ready(1), send(run("SELECT 1"), fastpath(177, "1", "2")), ready(1), simple("SELECT 1"),
	}, checked: callBehindUnsynced},
}

// fastpath is a FunctionCall with arguments as text.
func fastpath(oid uint32, args ...string) *pgproto3.FunctionCall {
	call := &pgproto3.FunctionCall{Function: oid}
	for _, arg := range args {
		call.Arguments = append(call.Arguments, []byte(arg))
	}
	return call
}

// largeObject makes the large object 4242 and writes to it, as JDBC does: all by
// function calls, with arguments in the binary format.
func largeObject(p *peer) {
	p.T.Helper()
	p.Send(fastpath(715, "4242")) // lo_create
	p.Ready(1)
	p.query("BEGIN")
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	p.Send(&pgproto3.FunctionCall{Function: 952, ArgFormatCodes: []uint16{1}, Arguments: [][]byte{number(4242), number(0x60000)}, ResultFormatCode: 1}) // lo_open
	opened := p.Until("V")[0]
	p.Ready(1)
	fd := opened.Body[4:]
	p.Send(&pgproto3.FunctionCall{Function: 955, ArgFormatCodes: []uint16{1}, Arguments: [][]byte{fd, []byte("hello")}, ResultFormatCode: 1}) // lowrite
	p.Ready(1)
	p.Send(&pgproto3.FunctionCall{Function: 953, ArgFormatCodes: []uint16{1}, Arguments: [][]byte{fd}, ResultFormatCode: 1}) // lo_close
	p.Ready(1)
	p.query("COMMIT")
}
