package fencingtest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// escaped is a literal and a comment where backslashes are escapes. Elsewhere the comment is part of a
// literal that another one follows.
const escaped = `insert into jobs values (33, '\'') /*wirefence.token='orders=33'*/ -- '`

// attemptsAhead send their messages at once, so the proxy must read the later ones before it knows
// the effect of the earlier ones. XX000 is PostgreSQL's own answer to a query in an unfinished batch;
// WF006 the proxy's to a text that may be read in two ways.
var attemptsAhead = []attempt{
	{"a SET", "WF001", ahead(queries("set wirefence.token = '"+stale+"'", insert))},
	{"an extended SET", "WF001", ahead(pipelined("set wirefence.token = '"+stale+"'", insert, ""))},
	{"a name that changes hands", "WF001 WF006", ahead(queries("set wirefence.token = '"+stale+"'", "deallocate x", "prepare x as "+insert), executed("x"))},
	{"a name that DISCARD ALL frees", "WF001 WF006", ahead(queries("discard all", "prepare x as "+insert, "set wirefence.token = '"+stale+"'"), executed("x"))},
	{"a name that Close frees", "WF001 WF006", ahead([]pgproto3.FrontendMessage{closeOf('S', "x"), &pgproto3.Sync{}}, queries("prepare x as "+insert, "set wirefence.token = '"+stale+"'"), executed("x"))},
	{"a Parse in place of another", "WF001 WF006", ahead(queries("set wirefence.token = '"+stale+"'"), []pgproto3.FrontendMessage{closeOf('S', "x"), parseOf("x", insert), &pgproto3.Sync{}}, executed("x"))},
	{
		"a Parse that fails in place of another", "WF001 WF006",
		ahead(queries("set wirefence.token = '"+stale+"'"), []pgproto3.FrontendMessage{parseOf("w", insert), &pgproto3.Sync{}, parseOf("w", "select 1"), &pgproto3.Sync{}}, executed("w")),
	},
	{"escapes by SET", "WF001 WF006", ahead(queries("set standard_conforming_strings = off", escaped))},
	{"escapes by an extended SET", "WF001 WF006", ahead(pipelined("set standard_conforming_strings = off", "", escaped, ""))},
	{"escapes by an extended SET of the same batch", "WF001 WF006", ahead(pipelined("set standard_conforming_strings = off", escaped, ""))},
	{"escapes by set_config", "WF001 WF006", ahead(queries("select set_config('standard_' || 'conforming_strings', 'off', false)", escaped))},
	{"escapes by pg_settings", "WF001 WF006", ahead(queries("update pg_settings set setting = 'off' where name like 'standard%conf%strings'", escaped))},
	{"escapes by a function", "WF001 WF006", ahead(queries("select unconforming()", escaped))},
	{"a query in an unfinished batch", "WF001 WF006 XX000", ahead(stack.Unnamed("select 1"), queries(insert+behindStale))},
	{"a query behind a refused batch, which is skipped up to the Sync", "WF001 WF006", func(c *client, _ *world) error {
		return stack.Err(c.Exchange(1, slices.Concat(stack.Unnamed(insert+behindStale), queries(insert+behindStale), []pgproto3.FrontendMessage{&pgproto3.Sync{}})...))
	}},
	{"Flush between two writes", "WF001", ahead(queries("set wirefence.token = '"+stale+"'"), stack.Unnamed(insert), []pgproto3.FrontendMessage{&pgproto3.Flush{}}, pipelined(insert, ""))},
	{"a comment behind a byte of another encoding", "WF001 WF006", ahead(queries("set names 'sjis'", "insert into jobs values (33, E'\x83\x5c') /*wirefence.token='orders=33'*/ -- '"))},
	{"EXECUTE that sets the variable in its own text", "WF001", ahead(queries("set wirefence.token = 'orders=34'", "prepare p as "+setsStale, "execute p; "+insert))},
	{"EXECUTE that sets the variable in its own batch", "WF001", ahead(queries("set wirefence.token = 'orders=34'", "prepare p as "+setsStale), pipelined("execute p", insert, ""))},
	{"a Bind of a PREPARE that sets the variable", "WF001", ahead(queries("prepare p as "+setsStale), executed("p"), queries(insert))},
	{"FETCH of a cursor that sets the variable", "WF001", ahead(queries("begin", "declare c cursor for "+setsStale, "fetch c", insert))},
	{"EXPLAIN ANALYZE of an EXECUTE that sets the variable", "WF001", ahead(queries("prepare p as "+setsStale, "explain analyze execute p", insert))},
	{"a batch behind its own SET", "WF001", ahead(queries("set wirefence.token = 'orders=34'", "select 1", "select 2"), pipelined("select 3", "set wirefence.token = '"+stale+"'", insert, ""))},
	{"a batch behind its own COMMIT", "WF001", ahead(queries("set wirefence.token = '"+stale+"'", "begin"), pipelined("set local wirefence.token = 'orders=34'", "commit", insert, ""))},
	{
		"a batch that begins to chain", "WF001",
		ahead(queries("set wirefence.token = 'orders=34'", "begin", "select 4", "set local wirefence.token = 'orders=34'", "set wirefence.token = '"+stale+"'"), pipelined("commit and chain", insert, "commit", "")),
	},
}

// executed binds and executes a prepared statement.
func executed(name string) []pgproto3.FrontendMessage {
	return []pgproto3.FrontendMessage{bindOf("", name), executeOf(""), &pgproto3.Sync{}}
}

// ahead is an attempt that sends all messages at once, in a session in which x reads.
func ahead(parts ...[]pgproto3.FrontendMessage) func(*client, *world) error {
	return func(c *client, _ *world) error {
		c.Exchange(1, parseOf("x", "select 1"), &pgproto3.Sync{})
		messages, answers := slices.Concat(parts...), 0
		for _, m := range messages {
			switch m.(type) {
			case *pgproto3.Query, *pgproto3.Sync:
				answers++
			}
		}
		return stack.Err(c.Exchange(answers, messages...))
	}
}

// A check in a READ ONLY transaction takes no lock, so it must not count once the transaction
// can write again.
func TestReadOnlySavepoint(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		for i, test := range []struct {
			end string
			at  int // where the session comes to carry
		}{{"rollback to a", 0}, {"release a", 0}, {"release a", 1}, {"release a", 2}} {
			for _, isolation := range isolations {
				resource := fmt.Sprintf("%s:%d", isolation[:4], i)
				w.Seal(t, resource, 33)
				c := w.connect(t)
				c.Must("begin isolation level "+isolation, "select * from cell")
				w.Seal(t, resource, 34)
				steps := slices.Insert([]string{"savepoint a", "set transaction read only", "select random(), writes(1) where false", test.end, insert},
					test.at, "set wirefence.token = '"+resource+"=33'")
				c.attempt = true
				c.Must(steps...)
				if got := stack.State(c.refusal); got != "WF001" && got != "40001" {
					t.Errorf("%v, %s: %q", test, isolation, got)
				}
				_ = c.Simple("commit")
				c.Close()
			}
		}
		w.wantRows(t, 0)
	})
}
