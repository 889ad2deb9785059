package fencingtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// suspects are texts without a fence, as ORMs, migrations, PostgREST and psql send them.
var suspects = []string{
	`select 1 as U&"caf\00e9"`, "select 'see set_config in the manual'", "comment on table jobs is 'set_config'", "select 'asset_config', 'pg_settings'",
	"update pg_settings set setting = '4MB' where name = 'work_mem'", "select set_config(lower('App.x'), '1', true)",
	"create or replace function rls() returns text language sql as $$ select set_config('app.x', '1', true) $$",
	"do $$ begin perform set_config('app.x', '1', true); end $$", "insert into jobs values (1, 'about wirefence, and wirefence.token')",
	"create temp table marked (a int, b text default current_setting('wirefence.token', true))",
}

// behindSuspects does what a session that counts as fenced is refused, or does otherwise, and returns
// the SQLSTATEs.
func behindSuspects(t *testing.T, c *client, name string) (states []string) {
	t.Helper()
	named := []pgproto3.FrontendMessage{parseOf("caf\u00e9", "select 1"), bindOf("", "caf\u00e9"), executeOf(""), closeOf('S', "caf\u00e9")}
	for _, run := range []func() error{
		func() error { return c.Simple("declare c cursor for select 1") },
		func() error { return c.Batch(named...) },
		func() error { return c.Simple("vacuum jobs") },
		func() error { return c.Extended("call nothing()") },
		func() error { return c.Simple("begin; insert into jobs values (2)") },
		func() error { return c.Simple("prepare transaction '" + name + "'") },
		func() error { return c.Simple("commit prepared '" + name + "'") },
		func() error { return c.Extended("begin") },
		func() error { return c.Extended("insert into jobs values (3)") },
		func() error { return c.Extended("prepare transaction '" + name + "'") },
		func() error { return c.Extended("rollback prepared '" + name + "'") },
	} {
		states = append(states, stack.State(run()))
	}
	return states
}

// trySuspects sends each of the texts first, and compares what follows with a direct connection.
func trySuspects(t *testing.T, w *world) {
	t.Helper()
	texts := append(slices.Clone(suspects), "parameters of set_config", "a parameter with the word")
	for i, sql := range texts {
		var states [2][]string
		for n, c := range []*client{{Client: stack.Login(t, w.Addr(), w.Name)}, w.connect(t)} {
			var err error
			switch i - len(suspects) {
			case 0: // PostgREST
				err = c.Batch(&pgproto3.Parse{Query: "select set_config($1, $2, true)"}, &pgproto3.Bind{Parameters: [][]byte{[]byte("request.role"), []byte("anon")}}, executeOf(""))
			case 1:
				err = c.Batch(&pgproto3.Parse{Query: "select $1::text"}, &pgproto3.Bind{Parameters: [][]byte{[]byte("wirefence")}}, executeOf(""))
			default:
				err = c.Simple(sql)
			}
			states[n] = append([]string{stack.State(err)}, behindSuspects(t, c, fmt.Sprint(w.Name, i, n))...)
			c.Close()
		}
		if !slices.Equal(states[0], states[1]) {
			t.Errorf("%s\ndirectly %q\nproxied  %q", sql, states[0], states[1])
		}
	}
}

const forSuspects = "create table if not exists jobs (token int, note text); create procedure nothing() language sql as 'select 1';"

// Nothing is refused on a suspicion where the schema isn't there, isn't ours or isn't whole, or the
// role may not use it.
//
// Evidence: I6
func TestSuspectsWithoutTheSchema(t *testing.T) {
	for name, schema := range map[string]string{
		"never migrated": "", "another's": "create schema wirefence; create table wirefence.check (a int)",
		"half of ours": "create schema wirefence; create function wirefence.check(text, text, boolean, boolean) returns text language sql return null::text",
	} {
		t.Run(name, func(t *testing.T) {
			w := bareWorld(t, 0)
			w.Exec(t, schema+";"+forSuspects)
			trySuspects(t, w)
			c := w.connect(t)
			c.Fails("set wirefence.token = 'orders=34'; "+insert, "WF006")
			for _, by := range protocols {
				stack.WantState(t, by.run(c, insert), "", by.name)
				stack.WantState(t, by.run(c, insert+behindGood), "WF006", by.name)
			}
		})
	}
}

func TestSuspectsOfARoleWithoutRights(t *testing.T) {
	for name, revokes := range map[string]string{
		"USAGE": "revoke usage on schema wirefence from public", "EXECUTE": "revoke execute on all functions in schema wirefence from public",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 0)
			w.Exec(t, revokes+"; grant all on all tables in schema public to app")
			w = w.own(t, proxy.Options{})
			c := w.connect(t, "user", "app")
			c.Must("select 'wirefence'", "insert into jobs values (1)", "begin; insert into jobs values (2)", "rollback")
			for _, sql := range []string{insert + behindGood, "set wirefence.token = 'orders=34'; " + insert} {
				c := w.connect(t, "user", "app")
				c.Fails(sql, "WF006")
				c.Close()
			}
		})
	}
}

// In a database with the schema the session is checked behind the word, and the checks find nothing.
func TestSuspectsWithTheSchema(t *testing.T) {
	w := newWorld(t, 0)
	w.Exec(t, forSuspects)
	for _, sql := range suspects {
		c := w.connect(t)
		c.Must(sql)
		states := behindSuspects(t, c, w.Name)
		if strings.Contains(sql, "wirefence") {
			states[0] = "25P01" // a check makes a block of it
		}
		if want := append([]string{"25P01"}, make([]string, len(states)-1)...); !slices.Equal(states, want) {
			t.Errorf("%s: %q", sql, states)
		}
		c.Must("discard all", "select 1")
		stack.WantState(t, c.Simple("declare c cursor for select 1"), "25P01", sql, "behind DISCARD ALL and a check")
		c.Close()
	}
}

// Before a pooler in transaction mode the same texts set nothing that it could lose.
func TestSuspectsBeforeAPooler(t *testing.T) {
	w := poolerBehind(t, two, proxy.Options{})
	w.Exec(t, forSuspects)
	trySuspects(t, w)
}

// Sessions of a pool may be older than the schema. Without the schema, writes with a fence are
// refused. From the first login after the migration on, all of them are checked.
func TestSessionsFromBeforeTheMigration(t *testing.T) {
	stack.OnEach(t, oldAndNew, func(t *testing.T, major int) {
		w := bareWorld(t, major)
		w.Exec(t, "create table jobs (token int)")
		type sessions struct {
			protocol
			carries, comments *client
		}
		var all []sessions
		for _, by := range protocols {
			s := sessions{by, w.fenced(t, stale), w.connect(t)}
			all = append(all, s)
			stack.WantState(t, by.run(s.comments, insert), "", by.name) // carries nothing
			for _, sql := range []string{insert, "select * from jobs"} {
				stack.WantState(t, by.run(s.carries, sql), "WF006", by.name, sql)
				err := by.run(s.comments, sql+behindStale)
				stack.WantState(t, err, "WF006", by.name, sql)
				if e, ok := err.(*pgconn.PgError); !ok || !strings.Contains(e.Hint, "wirefence migrate") || !strings.Contains(e.Message, w.Name) {
					t.Errorf("%+v", err)
				}
			}
		}
		stack.WantState(t, all[0].comments.Call(w.function(t, "lo_create(oid)"), "0"), "")
		stack.WantState(t, all[0].carries.Call(w.function(t, "lo_create(oid)"), "0"), "WF006")
		if err := migrations.Apply(t.Context(), w.Admin, func(string) {}); err != nil {
			t.Fatal(err)
		}
		w.Seal(t, "orders", 34)
		w.connect(t)
		for _, s := range all {
			stack.WantState(t, s.run(s.comments, insert+behindStale), "WF001", s.name)
			stack.WantState(t, s.run(s.carries, insert), "WF001", s.name)
			stack.WantState(t, s.run(s.carries, "set wirefence.token = 'orders=34'"), "", s.name)
			stack.WantState(t, s.run(s.carries, insert), "", s.name)
		}
		w.wantRows(t, 2*len(protocols))
	})
}

// What answers as a router with shards does is several databases: a check may be answered by
// another one than the write behind it, so no fence counts there. Others are served.
func TestARouterThatShards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.Exec(t, "alter database "+w.Name+" set pgdog.shards = '2'")
	w = w.own(t, proxy.Options{DatabaseURL: w.URL(w.Name)})
	fenced, plain := w.fenced(t, "orders=34"), w.connect(t)
	stack.Eventually(t, "the proxy asks for a router", func() bool { return stack.State(fenced.Simple(insert)) == "WF006" })
	for _, by := range protocols {
		var refusal *pgconn.PgError
		if err := by.run(fenced, insert); !errors.As(err, &refusal) || refusal.Code != "WF006" || !strings.Contains(refusal.Detail, "several databases") {
			t.Errorf("%s: %#v", by.name, err)
		}
		stack.WantState(t, by.run(plain, insert), "", by.name)
		stack.WantState(t, by.run(plain, insert+behindStale), "WF006", by.name)
	}
}
