package fencingtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
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
			for _, sql := range []string{insert + behindGood, "set wirefence.token = 'orders=34'; " + insert} {
				c := w.connect(t)
				c.Fails(sql, "WF006")
				c.Close()
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
