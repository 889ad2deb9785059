package fencingtest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// The messages of each list are sent at once, so the proxy must read the later ones before it
// knows the effect of the earlier ones. The first error must be a refusal, and nothing may be
// written.
func TestMessagesSentAheadPassNothingUnchecked(t *testing.T) {
	const behind = " /*wirefence.token='" + stale + "'*/"
	// With backslashes as escapes this is a literal and a comment; without, the
	// comment is part of a literal that another one follows.
	const escaped = `insert into jobs values (33, '\'') /*wirefence.token='orders=33'*/ -- '`
	sync, execute := &pgproto3.Sync{}, &pgproto3.Execute{}
	onEach(t, oldAndNew, func(t *testing.T, shared *world) {
		for _, test := range []struct {
			name     string
			before   []string
			messages []pgproto3.FrontendMessage
			syncs    int
		}{
			{"a SET", nil, slices.Concat(queries("set wirefence.token = '"+stale+"'"), queries(insert)), 2},
			{"an extended SET", nil, slices.Concat(stack.Unnamed("set wirefence.token = '"+stale+"'"), stack.Unnamed(insert), []pgproto3.FrontendMessage{sync}), 1},
			{"a name that changes hands", []string{"set wirefence.token = '" + stale + "'"},
				slices.Concat(queries("deallocate x"), queries("prepare x as "+insert), []pgproto3.FrontendMessage{&pgproto3.Bind{PreparedStatement: "x"}, execute, sync}), 3},
			{"a name that DISCARD ALL frees", []string{"set wirefence.token = '" + stale + "'"},
				slices.Concat(queries("discard all"), queries("prepare x as "+insert), queries("set wirefence.token = '"+stale+"'"), []pgproto3.FrontendMessage{&pgproto3.Bind{PreparedStatement: "x"}, execute, sync}), 4},
			{"a Parse in place of another", []string{"set wirefence.token = '" + stale + "'"},
				[]pgproto3.FrontendMessage{&pgproto3.Close{ObjectType: 'S', Name: "x"}, &pgproto3.Parse{Name: "x", Query: insert}, sync, &pgproto3.Bind{PreparedStatement: "x"}, execute, sync}, 2},
			{"a Parse that fails in place of another", []string{"set wirefence.token = '" + stale + "'"},
				[]pgproto3.FrontendMessage{&pgproto3.Parse{Name: "w", Query: insert}, sync, &pgproto3.Parse{Name: "w", Query: "select 1"}, sync, &pgproto3.Bind{PreparedStatement: "w"}, execute, sync}, 3},
			{"escapes by SET", nil, slices.Concat(queries("set standard_conforming_strings = off"), queries(escaped)), 2},
			{"escapes by an extended SET", nil, slices.Concat(stack.Unnamed("set standard_conforming_strings = off"), []pgproto3.FrontendMessage{sync}, stack.Unnamed(escaped), []pgproto3.FrontendMessage{sync}), 2},
			{"escapes by an extended SET of the same batch", nil, slices.Concat(stack.Unnamed("set standard_conforming_strings = off"), stack.Unnamed(escaped), []pgproto3.FrontendMessage{sync}), 1},
			{"escapes by set_config", nil, slices.Concat(queries("select set_config('standard_' || 'conforming_strings', 'off', false)"), queries(escaped)), 2},
			{"escapes by pg_settings", nil, slices.Concat(queries("update pg_settings set setting = 'off' where name like 'standard%conf%strings'"), queries(escaped)), 2},
			{"escapes by a function", nil, slices.Concat(queries("select lex()"), queries(escaped)), 2},
			{"escapes by DO", nil, slices.Concat(queries("do $$ begin perform lex(); end $$"), queries(escaped)), 2},
			{"a query in an unfinished batch", nil, slices.Concat(stack.Unnamed("select 1"), queries(insert+behind)), 1},
			{"a query behind a refused batch", nil, slices.Concat(stack.Unnamed(insert+behind), queries(insert+behind), []pgproto3.FrontendMessage{sync}), 1},
			{"a call in an unfinished batch", []string{"set wirefence.token = '" + stale + "'"}, slices.Concat(stack.Unnamed("show work_mem"), []pgproto3.FrontendMessage{shared.call(t, "writes(int)", "1")}), 1},
			{"Flush", []string{"set wirefence.token = '" + stale + "'"}, slices.Concat(stack.Unnamed(insert), []pgproto3.FrontendMessage{&pgproto3.Flush{}}, stack.Unnamed(insert), []pgproto3.FrontendMessage{sync}), 1},
			{"a comment behind a byte of another encoding", []string{"set client_encoding = 'sjis'"}, queries("insert into jobs values (33, E'\x83\x5c') /*wirefence.token='orders=33'*/ -- '"), 1},
			{"an encoding that is under way", nil, slices.Concat(queries("set names 'sjis'"), queries("insert into jobs values (33, E'\x83\x5c') /*wirefence.token='orders=33'*/ -- '")), 2},
		} {
			t.Run(test.name, func(t *testing.T) {
				w := newWorld(t, shared.Major)
				w.Exec(t, "create function lex() returns text language sql as $$ select set_config('standard_conforming_strings', 'off', false) $$")
				c := w.connect(t)
				c.Exchange(1, &pgproto3.Parse{Name: "x", Query: "select 1"}, sync)
				c.Must(test.before...)
				all := c.Exchange(test.syncs, test.messages...)
				// XX000 is PostgreSQL's own answer to a query in an unfinished batch; WF006
				// the proxy's to a text that may be read in two ways.
				if got := stack.States(all); len(got) == 0 || !slices.Contains([]string{"WF001", "WF006", "XX000"}, got[0]) {
					t.Errorf("got %q", got)
				}
				w.wantRows(t, 0)
			})
		}
	})
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
