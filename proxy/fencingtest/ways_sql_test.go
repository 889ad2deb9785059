package fencingtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// PostgreSQL keeps 63 bytes of a name, so these two are the same to it.
var (
	longName  = strings.Repeat("n", 63)
	longNames = [2]string{longName + "-one", longName + "-two"}
)

// attemptsByNames use names that PostgreSQL takes for each other, or for the proxy's own.
var attemptsByNames = []attempt{
	{"statement by another name that is cut to the same", "WF001 WF006", func(c *client, _ *world) error {
		c.Exchange(1, parseOf(longNames[0], insert+behindStale), &pgproto3.Sync{})
		return c.Batch(bindOf("", longNames[1]), executeOf(""))
	}},
	{"portal by another name that is cut to the same", "WF001 WF006", func(c *client, _ *world) error {
		return c.Batch(parseOf("w", insert+behindStale), bindOf(longNames[0], "w"), executeOf(longNames[1]))
	}},
	{"statement that is replaced by a name that is cut to the same", "WF001 WF006", func(c *client, _ *world) error {
		c.Exchange(1, parseOf(longNames[0], "select 1"), &pgproto3.Sync{})
		c.Exchange(1, closeOf('S', longNames[1]), parseOf(longNames[1], insert), &pgproto3.Sync{})
		c.zombie()
		return c.Batch(bindOf("", longNames[0]), executeOf(""))
	}},
	{"statement by a name that conversion cuts", "WF001 WF006 26000", func(c *client, _ *world) error {
		c.Must("set client_encoding = latin1")
		e := strings.Repeat("\xe9", 40) // 80 bytes in the server's UTF8
		c.Exchange(1, parseOf(e+"1", insert+behindStale), &pgproto3.Sync{})
		return c.Batch(bindOf("", e+"2"), executeOf(""))
	}},
	{"PREPARE of a name that is cut", "WF001 WF004 WF006 26000", func(c *client, _ *world) error {
		if err := c.Simple("prepare " + longName + "n as " + insert + behindStale); err != nil {
			return err
		}
		return c.Batch(bindOf("", longName), executeOf(""))
	}},
	{"PREPARE in place of a read", "WF001 WF006", func(c *client, _ *world) error {
		c.Exchange(1, parseOf("x", "select 1"), &pgproto3.Sync{})
		c.Must("deallocate x", "prepare x as "+insert)
		c.zombie()
		return c.Batch(bindOf("", "x"), executeOf(""))
	}},
	{"PREPARE in place of a good fence", "WF001 WF006", func(c *client, _ *world) error {
		c.Exchange(1, parseOf("x", insert+behindGood), &pgproto3.Sync{})
		c.Must("deallocate x", "prepare x as "+insert)
		c.zombie()
		return c.Batch(bindOf("", "x"), executeOf(""))
	}},
	{"FETCH from a portal that was bound before the fence", "WF001", func(c *client, _ *world) error {
		c.Must("begin")
		c.Exchange(1, parseOf("s", "select writes(1)"), bindOf("p", "s"), &pgproto3.Sync{})
		c.Must("set local wirefence.token = '" + stale + "'")
		return c.Simple("fetch p")
	}},
	{"temporary tables and types of wirefence's names", "WF001", texts("create temp table resource_locks (resource_id text, last_token bigint)",
		"create domain pg_temp.text as pg_catalog.text", "create domain pg_temp.bigint as pg_catalog.int8", "create type pg_temp.boolean as enum ('t')",
		"create function pg_temp.check(text, text, boolean) returns void language sql as ''",
		"set search_path = pg_temp, public, pg_catalog", "set wirefence.token = '"+stale+"'", "insert into public.jobs values (33)")},
}

// padding makes a text larger than the proxy reads.
var padding = " -- " + strings.Repeat("x", 5<<10)

func TestAttemptsByLargeTexts(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w = w.own(t, proxy.Options{MaxStatement: 4 << 10})
		for _, a := range []attempt{
			{"comment behind the limit", "WF006", texts(insert + padding + "\n" + behindStale)},
			{"comment at the very end of a huge text", "WF006", texts(insert + strings.Repeat(padding, 2000) + "\n" + behindStale)},
			{"EXECUTE of a Parse in the same batch", "WF001 WF006", func(c *client, _ *world) error {
				return c.Batch(parseOf("w", insert+behindStale), parseOf("", "execute w"+padding), bindOf("", ""), executeOf(""))
			}},
			{"large text in the session that carries it", "WF006", stales(insert + padding)},
			{"large text in place of a read, in a batch that comes to carry", "WF001 WF006", func(c *client, _ *world) error {
				c.Exchange(1, parseOf("x", "select 1"), &pgproto3.Sync{})
				c.Send(closeOf('S', "x"), parseOf("x", insert+padding))
				return c.Batch(append(stack.Unnamed("set wirefence.token = '"+stale+"'"), bindOf("", "x"), executeOf(""))...)
			}},
			// One that comes in parts ends the session.
			{"Bind with a name behind the limit", "WF001 WF006 08P01", func(c *client, _ *world) error {
				return c.Batch(parseOf("w", insert+behindStale), bindOf(strings.Repeat("p", 9<<10), "w"), executeOf(strings.Repeat("p", 63)))
			}},
		} {
			t.Run(a.name, func(t *testing.T) {
				c := w.connect(t)
				err := a.run(c, w)
				if got := stack.State(err); !strings.Contains(a.want, got) || got == "" {
					t.Errorf("got %q, want %q (%v)", got, a.want, err)
				}
				w.wantRows(t, 0)
				w.Exec(t, "truncate jobs")
			})
		}
	})
}

// attemptsByText hide a fence from a careless reader of the text.
var attemptsByText = []attempt{
	{"comment behind a no-break space", "WF001 WF004", texts(insert + " /*\u00a0wirefence.token='" + stale + "'*/")},
	{"comment with a no-break space behind its key", "WF001 WF004", texts(insert + " /*wirefence.token\u00a0='" + stale + "'*/")},
	{"comment with a no-break space before its value", "WF001 WF004", texts(insert + " /*wirefence.token=\u00a0'" + stale + "'*/")},
	{"comment with typographic quotes", "WF004", texts(insert + " /*wirefence.token=‘" + stale + "’*/")},
	{"comment behind a byte order mark", "WF001 WF004", texts(insert + " --\ufeffwirefence.token='" + stale + "'")},
	{"comment in LATIN1", "WF001 WF004", texts("set client_encoding = latin1", insert+" /*\xa0wirefence.token='"+stale+"'*/")},
	{"escapes by SET", "WF001", texts("set standard_conforming_strings = off", `insert into jobs values (33, '\'') `+behindStale+` -- '`)},
	{"escapes by SET in the same message", "WF001", texts(`set standard_conforming_strings = off; insert into jobs values (33, '\')` + behindStale + ` -- '`)},
	{"escapes by a function", "WF001", texts("select unconforming()", `insert into jobs values (33, '\'') `+behindStale+` -- '`)},
	{"quote-like byte in SJIS", "WF001", texts("set client_encoding = sjis", "insert into jobs values (33, E'\x83\x5c') "+behindStale+" -- '")},
	{"quote-like byte in BIG5", "WF001", texts("set client_encoding = big5", "insert into jobs values (33, E'\xa5\x5c') "+behindStale+" -- '")},
	{"quote-like byte in GBK", "WF001", texts("set client_encoding = gbk", "insert into jobs values (33, E'\x81\x5c') "+behindStale+" -- '")},
	{"quote-like byte in UHC", "22021 22P05", texts("set client_encoding = uhc", "insert into jobs values (33, E'\x81\x5c') "+behindStale+" -- '")},
	{"quote-like byte in JOHAB", "22021", texts("set client_encoding = johab", "insert into jobs values (33, E'\x88\x5c') "+behindStale+" -- '")},
	{"quote-like byte in GB18030", "WF001", texts("set client_encoding = gb18030", "insert into jobs values (33, E'\x81\x5c') "+behindStale+" -- '")},
	{"half a character before a quote", "22021", texts("set client_encoding = sjis", "insert into jobs values (33, '\x83') "+behindStale)},
}

// attemptsBySQL use commands of PostgreSQL.
var attemptsBySQL = []attempt{
	{"SET ROLE", "WF001", stales("set role app", "insert into jobs values (33)")},
	{"SET SESSION AUTHORIZATION", "WF001", stales("set session authorization app", "insert into jobs values (33)")},
	{"RESET ALL of a startup value", "WF001", func(c *client, w *world) error {
		z := w.connect(c.T, "options", "-c wirefence.token="+stale)
		z.Must("set wirefence.token = ''", "reset all")
		return z.Simple(insert)
	}},
	{"DISCARD ALL of a startup value", "WF001", func(c *client, w *world) error {
		z := w.connect(c.T, "options", "-c wirefence.token="+stale)
		z.Must("set wirefence.token = ''", "discard all")
		return z.Extended(insert)
	}},
	{"DISCARD PLANS, SEQUENCES, TEMP", "WF001", stales("discard plans", "discard sequences", "discard temp", insert)},
	{"default of a role in a database", "WF001", func(c *client, w *world) error {
		w.Exec(c.T, "alter role app in database "+w.Name+" set wirefence.token = '"+stale+"'")
		return w.connect(c.T, "user", "app").Simple("insert into jobs values (33)")
	}},
	{"EXECUTE in PL/pgSQL", "WF001", stales("select dynamic()")},
	{"event trigger on REINDEX and DDL", "WF001", func(c *client, w *world) error {
		t := c.T
		w.Exec(t, `create function on_ddl() returns event_trigger language plpgsql as $$ begin insert into public.jobs values (33); end $$;
			create event trigger ddl on ddl_command_start when tag in ('CREATE SCHEMA') execute function on_ddl()`)
		defer w.Exec(t, "drop event trigger ddl")
		c.zombie()
		return c.Simple("create schema made")
	}},
	{"rule", "WF001", stales("insert into log values (1)")},
	{"INSTEAD OF trigger", "WF001", stales(`insert into "window" values (33)`)},
	{"function in RETURNING", "WF001", stales("update cell set n = n where id = 1 returning writes(id)")},
	{"MERGE", "WF001 42601", stales("merge into jobs using (values (33)) v(a) on false when not matched then insert values (a)")},
	{"cursor WITH HOLD that runs at the COMMIT", "WF001", texts("begin", "declare h cursor with hold for select writes(1)", "set local wirefence.token = '"+stale+"'", "commit")},
	{"cursor that a function has opened", "WF001", texts("begin", "select opens()", "set local wirefence.token = '"+stale+"'", "fetch opened")},
	{"MOVE in a cursor that a function has opened", "WF001", texts("begin", "select opens()", "set local wirefence.token = '"+stale+"'", "move opened")},
	{"portal of a cursor that a function has opened", "WF001", func(c *client, _ *world) error {
		c.Must("begin", "select opens()", "set local wirefence.token = '"+stale+"'")
		return c.Batch(executeOf("opened"))
	}},
	{"deferred trigger that runs at the COMMIT", "WF001", texts("begin", "insert into queue values (1)", "set local wirefence.token = '"+stale+"'", "commit")},
	{"deferred trigger by SET CONSTRAINTS", "WF001", texts("begin", "insert into queue values (1)", "set local wirefence.token = '"+stale+"'", "set constraints all immediate")},
	{"NOTIFY", "WF001", stales("listen news", "notify news, 'stale'")},
	{"two-phase commit", "WF006", texts("begin", "set local wirefence.token = '"+stale+"'", "prepare transaction 'attempt'")},
	{"COMMIT PREPARED", "WF006", stales("commit prepared 'attempt'")},
	{"deferred trigger that runs at a COMMIT with another fence", "WF001", texts("begin", "select 1"+behindGood, "insert into later values (1)", "commit"+behindStale)},
	{"deferred trigger that runs at the COMMIT of a chained transaction", "WF001", undone("begin", "select 1 {undone}", "commit and chain", "insert into later values (1)")},
	{"deferred trigger that runs at a COMMIT whose check was rolled back", "WF001", undone("begin", "insert into later values (1)", "savepoint a", "select 1 {undone}", "rollback to a")},
	{"deferred trigger that runs at a COMMIT under a value that ROLLBACK TO brings back", "WF001", func(c *client, w *world) error {
		w.Seal(c.T, "other", 7)
		return texts("begin", "insert into later values (1)", "set local wirefence.token = '"+stale+"'", "savepoint a /*wirefence.token='other=7'*/",
			"set local wirefence.token = 'orders=34'", "select 1", "rollback to a", "commit")(c, w)
	}},
	{"SAVEPOINT that brings a good value back", "WF001", texts("begin", "set local wirefence.token = 'orders=34'", "insert into cell values (60, 0)",
		"savepoint a", "set local wirefence.token = '"+stale+"'", insert)},
	{"deferred trigger that runs at a COMMIT behind a text that failed ahead of its own", "WF001", func(c *client, w *world) error {
		c.Must("begin", "insert into later values (1)", "set local wirefence.token = '"+stale+"'", "savepoint a /*wirefence.token='other=7'*/")
		_ = c.Simple("set local wirefence.token = 'orders=34'; select 1; rollback to a; commit")
		return texts("rollback to a", "commit")(c, w)
	}},
	{"ROLLBACK TO that brings the stale value back", "WF001", texts("begin", "set local wirefence.token = '"+stale+"'", "savepoint a",
		"set local wirefence.token = 'orders=34'", "insert into cell values (61, 0)", "rollback to a", insert)},
	{"COMMIT that brings the stale value back", "WF001", stales("begin", "set local wirefence.token = 'orders=34'", "insert into cell values (62, 0)", "rollback and chain", insert)},
	{"READ ONLY set READ WRITE", "WF001 25001", stales("begin read only", "set transaction read write", insert)},
	{"READ WRITE behind a check in READ ONLY", "25001 WF001 25P02", func(c *client, _ *world) error {
		c.zombie()
		c.Must("begin read only")
		_ = c.Simple("select random() from cell")
		if err := c.Simple("set transaction read write"); err != nil {
			return err
		}
		return c.Simple(insert)
	}},
	{"SET TRANSACTION SNAPSHOT", "WF001 40001", func(c *client, w *world) error {
		t := c.T
		w.Seal(t, "snapshots", 33)
		old := w.Direct(t)
		stack.MustExec(t, old, "begin isolation level repeatable read")
		var snapshot string
		if err := old.QueryRow(t.Context(), "select pg_export_snapshot()").Scan(&snapshot); err != nil {
			t.Fatal(err)
		}
		w.Seal(t, "snapshots", 34)
		c.Must("set wirefence.token = 'snapshots=33'", "begin isolation level repeatable read", "set transaction snapshot '"+snapshot+"'")
		return c.Simple(insert)
	}},
	{"default_transaction_read_only", "WF001 WF006 25006", stales("set default_transaction_read_only = on", "begin read write", insert)},
}

// undone is an attempt of simple queries, with a COMMIT behind them under the same fence,
// {undone}, which is stale at that point.
func undone(all ...string) func(*client, *world) error {
	return func(c *client, w *world) error {
		const fence = "/*wirefence.token='undone=1'*/"
		w.Exec(c.T, "delete from wirefence.resource_locks where resource_id = 'undone'")
		w.Seal(c.T, "undone", 1)
		for _, sql := range all {
			c.Must(strings.ReplaceAll(sql, "{undone}", fence))
		}
		w.Seal(c.T, "undone", 2)
		return c.Simple("commit " + fence)
	}
}

var attemptsWithoutFence = []attempt{
	{"RELEASE that makes the transaction READ WRITE again", "WF002", texts("begin", setLocal(34), "savepoint a", "set local wirefence.token = ''",
		"declare c cursor with hold for select writes(1)", "release a", "commit")},
	{"statement prepared in place of a read", "WF002", func(c *client, _ *world) error {
		c.Exchange(1, parseOf(longNames[0], "select 1"), &pgproto3.Sync{})
		c.Exchange(1, closeOf('S', longNames[1]), parseOf(longNames[1], insert), &pgproto3.Sync{})
		return c.Batch(bindOf("", longNames[0]), executeOf(""))
	}},
	{"PREPARE in place of a read", "WF002", func(c *client, _ *world) error {
		c.Exchange(1, parseOf("x", "select 1"), &pgproto3.Sync{})
		c.Must("deallocate x", "prepare x as "+insert)
		return c.Batch(bindOf("", "x"), executeOf(""))
	}},
	{"portal that SQL replaces in its own batch", "WF002", func(c *client, _ *world) error {
		c.Must("begin")
		return c.Batch(append(append(append([]pgproto3.FrontendMessage{parseOf("r", "select 1"), bindOf("p", "r")}, stack.Unnamed("close p")...),
			stack.Unnamed("declare p cursor for select writes(1)")...), executeOf("p"))...)
	}},
	{"EXECUTE in a pipeline", "WF002", func(c *client, _ *world) error {
		return c.Batch(append(stack.Unnamed("prepare w as "+insert), stack.Unnamed("execute w")...)...)
	}},
	{"portal suspended", "WF002", func(c *client, _ *world) error {
		return c.Batch(parseOf("s", "select writes(1)"), bindOf("p", "s"), &pgproto3.Execute{Portal: "p", MaxRows: 1})
	}},
	{"empty value", "WF002", texts("set wirefence.token = ''", insert)},
	{"large text", "WF006", texts(insert + " -- " + strings.Repeat("x", 17<<20))},
	{"rule", "WF002", texts("insert into log values (1)")},
	{"INSTEAD OF trigger", "WF002", texts(`insert into "window" values (33)`)},
	{"EXECUTE in PL/pgSQL", "WF002", texts("select dynamic()")},
	{"cursor that a function opens", "WF002", texts("begin", "select opens()", "fetch opened")},
	{"DECLARE of a write", "WF002", texts("begin", "declare c cursor for select writes(1)", "fetch c")},
	{"cursor WITH HOLD that runs at the COMMIT", "WF002", texts("begin", "declare c cursor with hold for select writes(1)", "commit")},
	{"two-phase commit", "WF006", texts("begin", "prepare transaction 'attempt'")},
	{"read behind a RESET ALL", "WF002", texts("reset all", "discard all", insert)},
}
