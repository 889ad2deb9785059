package wiretest

import (
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// Scripts of errors: in pipelines, in messages that make no sense.
var errorScripts = []script{
	{name: "05 an error is sent at once and the rest discarded to Sync", steps: []step{
		ready(1),
		send(run("INSERT INTO t VALUES (1, 'a')"), run("SELECT 1/0"), flush), until('E'),
		send(run("INSERT INTO t VALUES (2, 'b')"), describe('S', ""), flush, closing('S', "")),
		send(sync_), ready(1), simple("SELECT count(*) FROM t"),
	}},
	{name: "05 an error of the parser", steps: []step{
		ready(1),
		send(parse("s", "SELEC 1"), describe('S', "s"), bind("", "s"), execute("", 0)), until('E'),
		send(sync_), ready(1), synced(bind("", "s")),
	}},
	{name: "05 an error at each message", steps: []step{
		ready(1),
		synced(bind("", "none"), execute("", 0)), synced(describe('S', "none")), synced(describe('P', "none")), synced(execute("none", 0)),
		synced(parse("s", "SELECT 1"), parse("s", "SELECT 2")), synced(parse("t", "SELECT $1::int"), bind("", "t")), synced(run("SELECT $1::int", "x")),
		synced(parse("", "SELECT 1"), bind("p", ""), bind("p", "")),
	}},
	{name: "05 an error in a block", steps: []step{
		ready(1), simple("BEGIN"), synced(run("INSERT INTO t VALUES (1, 'a')"), run("SELECT 1/0"), run("COMMIT")),
		synced(run("INSERT INTO t VALUES (2, 'b')")), synced(run("SELECT 1")), synced(describe('S', "")), synced(run("COMMIT")),
		synced(run("INSERT INTO t VALUES (3, 'c')")),
	}},
	{name: "05 two errors, two Syncs, in one go", steps: []step{
		ready(1),
		send(run("SELECT 1/0"), run("SELECT 1"), sync_, run("SELEC"), run("SELECT 1"), sync_, run("SELECT 2"), sync_), ready(3),
	}},
	{name: "05 an error at the Sync itself", setup: "CREATE TABLE x.d(a int UNIQUE DEFERRABLE INITIALLY DEFERRED)", steps: []step{
		ready(1),
		synced(run("INSERT INTO x.d VALUES (1)"), run("INSERT INTO x.d VALUES (1)")),
		simple("INSERT INTO x.d VALUES (2), (2)"), simple("SELECT count(*) FROM x.d"),
	}},
	{name: "05 queries among what is discarded", steps: []step{
		ready(1), send(run("SELECT 1/0"), flush), until('E'),
		send(q("INSERT INTO t VALUES (1, 'a')"), fastpath(177, "1", "2"), parse("s", "SELECT 0"), bind("", "s"), q("BEGIN")), send(sync_), ready(1),
		send(parse("s", "SELECT 1"), sync_, closing('S', "s"), parse("s", "SELECT 2"), sync_, bind("", "s"), execute("", 0), sync_), ready(3),
		send(run("SELEC"), q("SELECT 1"), sync_, run("INSERT INTO t VALUES (2, 'b')"), sync_, q("SELECT 2")), ready(3),
	}},
	{name: "05 an unknown portal in an aborted transaction", steps: []step{
		ready(1), simple("BEGIN"), simple("SELECT 1/0"), simple("RESET ALL"), synced(execute("none", 0)),
		simple("ROLLBACK"), simple("BEGIN; DISCARD ALL"), synced(execute("none", 0)), simple("ROLLBACK"),
	}},
	{name: "an error's position", steps: []step{
		ready(1), simple("SELECT 1, nope FROM t"), simple("INSERT INTO t VALUES (1, nope)"), simple("SELECT 'Ünicöde', nope"),
		simple("INSERT INTO t VALUES (1, 'ü'); INSERT INTO t VALUES (2, nöpe)"), simple("INSERT INTO t VALUES (1, 'a'); INSERT INTO nowhere VALUES (1); SELECT 1"),
		simple("INSERT INTO t VALUES (1, 'a'); BEGIN; INSERT INTO t VALUES (2, 'b'); COMMIT; INSERT INTO t VALUES (3, nope)"),
		synced(run("INSERT INTO t VALUES (1, nope)")), simple("INSERT INTO t VALUES (1, 'a'); SELEC"),
		simple("SELECT write_one(1), twice('x'::text)"),
	}},
	{name: "an error in a function says where", steps: []step{
		ready(1), simple("INSERT INTO t VALUES (1, 'a')"), simple("SELECT write_one(1)"), synced(run("SELECT write_one(1)")),
		simple("DO $$BEGIN PERFORM 1/0; END$$"),
	}},
	{name: "a message of an unknown type", steps: []step{
		ready(1), raw([]byte{'!', 0, 0, 0, 4}), ends,
	}},
	{name: "a server's message from a client", steps: []step{
		ready(1), raw([]byte{'Z', 0, 0, 0, 5, 'I'}), ends,
	}},
	{name: "a Query without an end", steps: []step{
		ready(1), raw([]byte{'Q', 0, 0, 0, 12, 'S', 'E', 'L', 'E', 'C', 'T', ' ', '1'}), ready(1), simple("SELECT 1"),
	}},
	{name: "a Query with bytes behind its end", steps: []step{
		ready(1), raw([]byte("Q\x00\x00\x00\x10SELECT 1\x00 2\x00")), ready(1), simple("SELECT 1"),
	}},
	{name: "messages without a body", steps: []step{
		ready(1),
		send(rawMessage('Q', "")), ready(1),
		send(rawMessage('P', ""), sync_), ready(1), send(rawMessage('B', ""), sync_), ready(1),
		send(rawMessage('D', ""), sync_), ready(1), send(rawMessage('E', ""), sync_), ready(1),
		send(rawMessage('C', ""), sync_), ready(1),
	}},
	{name: "messages that are cut short", steps: []step{
		ready(1),
		send(rawMessage('P', "s\x00SELECT 1\x00"), sync_), ready(1), send(rawMessage('P', "s\x00SELECT 1"), sync_), ready(1),
		send(rawMessage('B', "\x00\x00\x00\x01"), sync_), ready(1), send(rawMessage('E', "\x00\x00"), sync_), ready(1),
		send(rawMessage('D', "Xs\x00"), sync_), ready(1), send(rawMessage('C', "X\x00"), sync_), ready(1),
		send(rawMessage('D', "S"), sync_), ready(1), simple("SELECT 1"),
	}},
	{name: "messages that are too long", steps: []step{
		ready(1),
		send(rawMessage('E', "\x00\x00\x00\x00\x00more"), sync_), ready(1), send(rawMessage('P', "s\x00INSERT INTO t VALUES (1)\x00\x00\x00more"), sync_), ready(1),
		send(rawMessage('D', "S\x00more"), sync_), ready(1), send(rawMessage('S', "more")), ready(1), simple("SELECT 1"),
	}},
	{name: "a name of 12000 bytes", steps: []step{ready(1), send(describe('S', strings.Repeat("n", 12000)), sync_), ends}},
	{name: "several statements in a Parse", steps: []step{
		ready(1), synced(run("INSERT INTO t VALUES (1, 'a'); SELECT 1")), synced(run("SELECT 1; INSERT INTO t VALUES (1, 'a')")),
	}},
	{name: "Terminate drops what was not synced", steps: []step{
		ready(1), send(run("INSERT INTO t VALUES (1, 'a')"), terminate), ends,
	}},
	{name: "Terminate with a query behind it", steps: []step{
		ready(1), send(terminate, q("INSERT INTO t VALUES (1, 'a')")), ends,
	}},
	{name: "Terminate in a block", steps: []step{
		ready(1), simple("BEGIN; INSERT INTO t VALUES (1, 'a')"), send(terminate), ends,
	}},
}

// rawMessage is a message with a body of one's own.
func rawMessage(typ byte, body string) pgproto3.FrontendMessage {
	return stack.Message{Type: typ, Body: []byte(body)}
}
