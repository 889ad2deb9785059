package wiretest

import (
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// Scripts of how sessions begin and end.
var sessionScripts = []script{
	{name: "10 protocol 3.9999", begin: func(db string) []byte { return stack.Startup(3<<16|9999, db) }, steps: []step{ready(1), simple("SELECT 1"), send(terminate), ends}},
	{name: "10 options of a later protocol", begin: func(db string) []byte { return stack.Startup(3<<16, db, "_pq_.one", "1", "_pq_.two", "2") }, steps: []step{ready(1), simple("SELECT 1"), send(terminate), ends}},
	{name: "10 protocol 3.9999 with options", begin: func(db string) []byte { return stack.Startup(3<<16|9999, db, "_pq_.one", "1") }, steps: []step{ready(1), simple("SELECT 1"), send(terminate), ends}},
	{name: "10 protocol 3.2", begin: func(db string) []byte { return stack.Startup(pgproto3.ProtocolVersion32, db) }, steps: []step{ready(1), simple("SELECT 1"), send(terminate), ends}},
	{name: "12 a startup packet of almost 10000 bytes", with: []string{"application_name", strings.Repeat("a", 9700)}, steps: []step{
		ready(1), simple("SHOW application_name"),
	}},
	{name: "12 options and settings at startup", with: []string{"application_name", "Ünicöde", "datestyle", "German", "search_path", "x,public"}, steps: []step{
		ready(1), simple("SHOW search_path"), simple("SHOW datestyle"),
	}},
	{name: "12 an unknown setting at startup", with: []string{"no_such_setting", "1"}, steps: []step{ends}},
	{name: "12 a database that isn't there", begin: func(string) []byte { return stack.Startup(v30, "nowhere") }, steps: []step{ends}},
	{name: "12 a role that isn't there", begin: func(string) []byte { return stack.Startup(v30, "postgres", "user", "nobody_at_all") }, steps: []step{ends}},
	{name: "12 a query behind the startup packet", begin: func(db string) []byte { return append(stack.Startup(v30, db), encoded(q("SELECT 1"))...) }, steps: []step{ready(2), simple("SELECT 2"), send(terminate), ends}},
	{name: "12 a pipeline and goodbye behind the startup packet", begin: func(db string) []byte {
		return append(stack.Startup(v30, db), encoded(all(run("SELECT 1"), sync_, q("SELECT 2"), terminate)...)...)
	}, steps: []step{ends}},
	{name: "12 replication sessions", with: []string{"replication", "database"}, steps: []step{
		ready(1), simple("SELECT 1"), simple("SHOW wal_level"), simple("READ_REPLICATION_SLOT none"), send(terminate), ends,
	}},
	{name: "13 a session that ends itself", checked: endExplained, held: endExplained, steps: []step{
		ready(1), send(q("SELECT pg_terminate_backend(pg_backend_pid())")), ends,
	}},
	{name: "13 an administrator ends an idle session", held: endExplained, idles: true, steps: []step{ready(1), simple("SELECT 1"), killed, ends}},
	{name: "13 an administrator ends a session in a block", checked: endExplained, held: endExplained, steps: []step{
		ready(1), simple("BEGIN"), simple("INSERT INTO t VALUES (1, 'a')"), killed, ends,
	}},
	{name: "13 an administrator ends a batch", checked: endExplained, held: endExplained, steps: []step{
		ready(1), send(run("INSERT INTO t VALUES (1, 'a')"), flush), until('C'), killed, ends,
	}},
	{name: "13 an idle session that is timed out", from: 14, steps: []step{ready(1), simple("SET idle_session_timeout = '30ms'"), ends}},
	{name: "13 a block that is timed out", steps: []step{
		ready(1), simple("SET idle_in_transaction_session_timeout = '30ms'"), simple("BEGIN"), ends,
	}},
	{name: "13 a statement that is timed out", steps: []step{
		ready(1), simple("SET statement_timeout = '150ms'"), simple("SELECT pg_sleep(60)"), synced(run("SELECT pg_sleep(60)"), run("SELECT 1")), simple("SELECT 1"),
	}},
	{name: "14 the client closes its half", steps: []step{
		ready(1), send(q("INSERT INTO t VALUES (1, 'a') RETURNING v"), run("SELECT generate_series(1, 20000)"), sync_), closeWrite, ready(2), ends,
	}},
	{name: "14 the client closes its half in a batch", steps: []step{
		ready(1), send(run("INSERT INTO t VALUES (1, 'a')"), flush), closeWrite, ends,
	}},
	{name: "14 the client closes its half at once", begin: func(db string) []byte { return stack.Startup(v30, db) }, steps: []step{closeWrite, ends}},
	{name: "14 the client closes its half in a message", steps: []step{
		ready(1), raw([]byte("Q\x00\x00\x00\x20SELECT")), closeWrite, ends,
	}},
}

func encoded(messages ...pgproto3.FrontendMessage) (b []byte) {
	for _, m := range messages {
		var err error
		if b, err = m.Encode(b); err != nil {
			panic(err)
		}
	}
	return b
}
