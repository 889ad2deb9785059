package fencingtest

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// bypass is an unusual but legal way to a write. The test makes the objects past the proxy.
// Then the client logs in with a fence, or without one, and comes to carry token 33. It must
// leave no row in jobs.
type bypass struct {
	name    string
	objects string
	fence   string
	run     func(c *client, w *world)
}

// bypassesByObjects use what is stored in the database, or in the session.
var bypassesByObjects = []bypass{
	{"EXPLAIN with a quoted option", "", "", func(c *client, _ *world) {
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails(`explain ("analyze") `+insert, "WF001")
		c.Fails(`explain (costs off, U&"\0061nalyze") `+insert, "WF001")
	}},
	{"INTO behind a column named as", "", "", func(c *client, w *world) {
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select 1 as as into made", "WF001")
		if n := w.count(c.T, "select count(*) from pg_class where relname = 'made'"); n != 0 {
			c.T.Error("the table was made")
		}
	}},
	{"FETCH from a cursor that was declared without a fence", "", "", func(c *client, _ *world) {
		c.Must("begin", "declare c cursor for select writes(1)", "set local wirefence.token = '"+stale+"'")
		c.Fails("fetch c", "WF001")
		c.Simple("commit")
	}},
	{"FETCH with a comment", "", "", func(c *client, _ *world) {
		c.Must("begin", "declare c cursor for select writes(1)")
		c.Fails("fetch c /*wirefence.token='"+stale+"'*/", "WF001")
		c.Simple("commit")
	}},
	{"portal of a cursor that SQL declared again", "", "", func(c *client, _ *world) {
		c.Must("begin")
		c.Exchange(1, &pgproto3.Parse{Query: "select 1"}, &pgproto3.Bind{DestinationPortal: "c"}, &pgproto3.Sync{})
		c.Must("close c", "declare c cursor for select writes(1)", "set local wirefence.token = '"+stale+"'")
		stack.WantState(c.T, c.Batch(&pgproto3.Execute{Portal: "c"}), "WF001")
		c.Simple("commit")
	}},
	{"portal whose second Bind failed", "", "", func(c *client, _ *world) {
		c.Must("begin")
		c.Exchange(1, &pgproto3.Parse{Query: "select writes(1)"}, &pgproto3.Bind{DestinationPortal: "p"}, &pgproto3.Sync{})
		c.Must("savepoint a")
		all := c.Exchange(1, &pgproto3.Parse{Query: "select 1"}, &pgproto3.Bind{DestinationPortal: "p"}, &pgproto3.Sync{})
		stack.WantState(c.T, stack.Err(all), "42P03")
		c.Must("rollback to a", "set wirefence.token = '"+stale+"'")
		stack.WantState(c.T, c.Batch(&pgproto3.Execute{Portal: "p"}), "WF001")
		c.Simple("commit")
	}},
	{"statement that SQL deallocated and prepared again", "", "", func(c *client, _ *world) {
		c.Exchange(1, &pgproto3.Parse{Name: "x", Query: "select 1"}, &pgproto3.Sync{})
		c.Must("deallocate x", "prepare x as "+insert, "set wirefence.token = '"+stale+"'")
		stack.WantState(c.T, c.Batch(&pgproto3.Bind{PreparedStatement: "x"}, &pgproto3.Execute{}), "WF001")
	}},
	{"PREPARE with a comment", "", "", func(c *client, _ *world) {
		if c.Simple("prepare x as "+insert+" /*wirefence.token='"+stale+"'*/") == nil {
			c.Fails("execute x", "WF001")
		}
	}},
	{"setter in EXPLAIN ANALYZE EXECUTE", "", "", func(c *client, _ *world) {
		c.Must("prepare p as select set_config('wirefence.token', '"+stale+"', false)", "select 1")
		c.Must("explain analyze execute p")
		c.Fails(insert, "WF001")
	}},
	{"setter in CREATE TABLE AS EXECUTE", "", "", func(c *client, _ *world) {
		c.Must("prepare p as select set_config('wirefence.token', '"+stale+"', false)", "select 1")
		c.Must("create table made as execute p")
		c.Fails(insert, "WF001")
	}},
	{"setter in EXECUTE of a Parse", "", "", func(c *client, _ *world) {
		c.Exchange(1, &pgproto3.Parse{Name: "p", Query: "select set_config('wirefence.token', '" + stale + "', false)"}, &pgproto3.Sync{})
		c.Must("execute p")
		c.Fails(insert, "WF001")
	}},
	{"view renamed as a table", "", "", func(c *client, _ *world) {
		c.Must("alter table dirty rename to harmless", "set wirefence.token = '"+stale+"'")
		c.Fails("select * from harmless", "WF001")
	}},
	{"function changed in a DO block", "", "", func(c *client, _ *world) {
		c.Must("do $$ begin create or replace function pure(i int) returns int language sql volatile as 'insert into public.jobs values (0, ''x''); select 1'; end $$")
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select pure(1)", "WF001")
	}},
	{"cast to a type of another name", `create type mood as (a int);
		create function to_int(mood) returns int language sql volatile as 'insert into public.jobs values (0, ''x''); select 1';
		create cast (mood as int) with function to_int(mood);
		create function to_bool(mood) returns bool language sql volatile as 'insert into public.jobs values (0, ''x''); select true';
		create cast (mood as bool) with function to_bool(mood)`, "", func(c *client, _ *world) {
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select row(1)::mood::int", "WF001")
		c.Fails("select cast(row(1)::mood as integer)", "WF001")
		c.Fails("select cast(row(1)::mood as boolean)", "WF001")
	}},
	{"argument's default", "create function f(a int default writes(1)) returns int language sql immutable as 'select a'", "", func(c *client, _ *world) {
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select f()", "WF001")
	}},
	{"argument of a domain that writes", `create function valid(text) returns boolean language sql volatile as 'insert into public.jobs values (0, ''x''); select true';
		create domain checked as text check (valid(value)); create function takes(checked) returns int language sql immutable as 'select 1'`, "", func(c *client, _ *world) {
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select takes('x')", "WF001")
	}},
	{"view that locks rows", "create view locking as select * from cell for update", "", func(c *client, w *world) {
		before := stack.Value[string](c.T, w.DB, "select string_agg(xmax::text, ',' order by id) from cell")
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select * from locking", "WF001")
		if after := stack.Value[string](c.T, w.DB, "select string_agg(xmax::text, ',' order by id) from cell"); after != before {
			c.T.Errorf("rows were locked: xmax %s, then %s", before, after)
		}
	}},
}

// Evidence: I4, I5
func TestNoWritePassesUnchecked(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, shared *world) {
		for _, b := range slices.Concat(bypassesByObjects, bypassesByMessages) {
			t.Run(b.name, func(t *testing.T) {
				w := newWorld(t, shared.Major)
				w.Exec(t, b.objects)
				b.run(w.fenced(t, b.fence), w)
				w.wantRows(t, 0)
			})
		}
	})
}
