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

// settingView sets the variable when it is read.
const settingView = "create view vset as select set_config('wirefence.token', 'orders=33', false) as a"

// bypassesBySetters run in a database where a function of the user can set the variable.
var bypassesBySetters = []bypass{
	{"setter by name", enter, "", func(c *client, _ *world) {
		c.Must("select enter('" + stale + "')")
		c.Fails(insert, "WF001")
	}},
	{"EXPLAIN with a quoted option", enter, "", func(c *client, _ *world) {
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails(`explain ("analyze") `+insert, "WF001")
		c.Fails(`explain (costs off, U&"\0061nalyze") `+insert, "WF001")
	}},
	{"INTO behind a column named as", enter, "", func(c *client, w *world) {
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select 1 as as into made", "WF001")
		if n := w.count(c.T, "select count(*) from pg_class where relname = 'made'"); n != 0 {
			c.T.Error("the table was made")
		}
	}},
	{"FETCH from a cursor that was declared without a fence", enter, "", func(c *client, _ *world) {
		c.Must("begin", "declare c cursor for select writes(1)", "set local wirefence.token = '"+stale+"'")
		c.Fails("fetch c", "WF001")
		c.Simple("commit")
	}},
	{"FETCH with a comment", enter, "", func(c *client, _ *world) {
		c.Must("begin", "declare c cursor for select writes(1)")
		c.Fails("fetch c /*wirefence.token='"+stale+"'*/", "WF001")
		c.Simple("commit")
	}},
	{"portal of a cursor that SQL declared again", enter, "", func(c *client, _ *world) {
		c.Must("begin")
		c.Exchange(1, &pgproto3.Parse{Query: "select 1"}, &pgproto3.Bind{DestinationPortal: "c"}, &pgproto3.Sync{})
		c.Must("close c", "declare c cursor for select writes(1)", "set local wirefence.token = '"+stale+"'")
		stack.WantState(c.T, c.Batch(&pgproto3.Execute{Portal: "c"}), "WF001")
		c.Simple("commit")
	}},
	{"portal whose second Bind failed", enter, "", func(c *client, _ *world) {
		c.Must("begin")
		c.Exchange(1, &pgproto3.Parse{Query: "select writes(1)"}, &pgproto3.Bind{DestinationPortal: "p"}, &pgproto3.Sync{})
		c.Must("savepoint a")
		all := c.Exchange(1, &pgproto3.Parse{Query: "select 1"}, &pgproto3.Bind{DestinationPortal: "p"}, &pgproto3.Sync{})
		stack.WantState(c.T, stack.Err(all), "42P03")
		c.Must("rollback to a", "set wirefence.token = '"+stale+"'")
		stack.WantState(c.T, c.Batch(&pgproto3.Execute{Portal: "p"}), "WF001")
		c.Simple("commit")
	}},
	{"statement that SQL deallocated and prepared again", enter, "", func(c *client, _ *world) {
		c.Exchange(1, &pgproto3.Parse{Name: "x", Query: "select 1"}, &pgproto3.Sync{})
		c.Must("deallocate x", "prepare x as "+insert, "set wirefence.token = '"+stale+"'")
		stack.WantState(c.T, c.Batch(&pgproto3.Bind{PreparedStatement: "x"}, &pgproto3.Execute{}), "WF001")
	}},
	{"PREPARE with a comment", enter, "", func(c *client, _ *world) {
		if c.Simple("prepare x as "+insert+" /*wirefence.token='"+stale+"'*/") == nil {
			c.Fails("execute x", "WF001")
		}
	}},
	{"EXECUTE of a Parse with a comment", enter, "", func(c *client, _ *world) {
		c.Exchange(1, &pgproto3.Parse{Name: "x", Query: insert + " /*wirefence.token='" + stale + "'*/"}, &pgproto3.Sync{})
		c.Fails("execute x", "WF006")
	}},
	{"setter made by another session", enter, "", func(c *client, w *world) {
		c.Must("insert into cell values (9, 9)")
		w.connect(c.T).Must("create function enter2(text) returns text language sql as 'select enter($1)'")
		c.Must("select enter2('" + stale + "')")
		c.Fails(insert, "WF001")
	}},
	{"setter made by the same session", enter, "", func(c *client, w *world) {
		c.Must("create function enter2(text) returns text language sql as 'select enter($1)'", "select enter2('"+stale+"')")
		c.Fails(insert, "WF001")
	}},
	{"first setter of the database", enter, "", func(c *client, w *world) {
		w.Exec(c.T, "drop function enter(text)")
		fresh := w.connect(c.T)
		fresh.Must("insert into cell values (9, 9)")
		w.connect(c.T).Must(enter)
		fresh.Must("select enter('" + stale + "')")
		fresh.Fails(insert, "WF001")
	}},
	{"setter called by the fastpath", enter, "", func(c *client, w *world) {
		call := w.call(c.T, "enter(text)", stale)
		stack.WantState(c.T, stack.Err(c.Exchange(1, call)), "")
		c.Fails(insert, "WF001")
	}},
	{"setter in a DO block", enter, "", func(c *client, _ *world) {
		c.Must("do $$ begin perform enter('" + stale + "'); end $$")
		c.Fails(insert, "WF001")
	}},
	{"setter in EXPLAIN ANALYZE EXECUTE", enter, "", func(c *client, _ *world) {
		c.Must("prepare p as select set_config('wirefence.token', '"+stale+"', false)", "select 1")
		c.Must("explain analyze execute p")
		c.Fails(insert, "WF001")
	}},
	{"setter in CREATE TABLE AS EXECUTE", enter, "", func(c *client, _ *world) {
		c.Must("prepare p as select set_config('wirefence.token', '"+stale+"', false)", "select 1")
		c.Must("create table made as execute p")
		c.Fails(insert, "WF001")
	}},
	{"setter in EXECUTE of a Parse", enter, "", func(c *client, _ *world) {
		c.Exchange(1, &pgproto3.Parse{Name: "p", Query: "select set_config('wirefence.token', '" + stale + "', false)"}, &pgproto3.Sync{})
		c.Must("execute p")
		c.Fails(insert, "WF001")
	}},
	{"function that became a setter behind a Parse", enter + "create function f() returns text language sql as 'select 1::text'", "", func(c *client, _ *world) {
		c.Exchange(1, &pgproto3.Parse{Name: "p", Query: "select f()"}, &pgproto3.Sync{})
		c.Must("create or replace function f() returns text language sql as $$ select set_config('wirefence.token', '" + stale + "', false) $$")
		c.Must("select 1")
		c.Exchange(1, &pgproto3.Bind{PreparedStatement: "p"}, &pgproto3.Execute{}, &pgproto3.Sync{})
		c.Fails(insert, "WF001")
	}},
	{"setter as a column's default", enter + "create table d (a int, b text default enter('" + stale + "'))", "", func(c *client, _ *world) {
		c.Must("insert into d values (1)")
		c.Fails(insert, "WF001")
	}},
	{"setter in a trigger behind a trigger", enter + `create table one (a int); create table two (a int);
		create function f1() returns trigger language plpgsql as $$ begin insert into two values (1); return new; end $$;
		create function f2() returns trigger language plpgsql as $$ begin perform enter('` + stale + `'); return new; end $$;
		create trigger t1 before insert on one for each row execute function f1();
		create trigger t2 before insert on two for each row execute function f2()`, "", func(c *client, _ *world) {
		c.Must("insert into one values (1)")
		c.Fails(insert, "WF001")
	}},
	{"setter in a partition's trigger", enter + `create table parent (a int) partition by list (a); create table part partition of parent for values in (1);
		create function f2() returns trigger language plpgsql as $$ begin perform enter('` + stale + `'); return new; end $$;
		create trigger t2 before insert on part for each row execute function f2()`, "", func(c *client, _ *world) {
		c.Must("insert into parent values (1)")
		c.Fails(insert, "WF001")
	}},
	{"setter in a trigger that was made in between", enter + `create table one (a int);
		create function f2() returns trigger language plpgsql as $$ begin perform enter('` + stale + `'); return new; end $$`, "", func(c *client, _ *world) {
		c.Must("create trigger t2 before insert on one for each row execute function f2()")
		c.Must("insert into one values (1)")
		c.Fails(insert, "WF001")
	}},
	{"setter far behind other functions", enter + `create function e1(text) returns text language sql as 'select enter($1)';
		create function e2(text) returns text language sql as 'select e1($1)'; create function e3(text) returns text language sql as 'select e2($1)';
		create function e4(text) returns text language sql as 'select e3($1)'; create function e5(text) returns text language sql as 'select e4($1)';
		create function e6(text) returns text language sql as 'select e5($1)'`, "", func(c *client, _ *world) {
		c.Must("select e6('" + stale + "')")
		c.Fails(insert, "WF001")
	}},
	{"setter in an aggregate", enter + "create function step(text, text) returns text language sql as 'select enter($2)'; create aggregate total(text) (sfunc = step, stype = text)", "", func(c *client, _ *world) {
		c.Must("select total('" + stale + "')")
		c.Fails(insert, "WF001")
	}},
	{"setter in a view of a view", enter + "create view v1 as select enter('" + stale + "') as a; create view v2 as select a from v1", "", func(c *client, _ *world) {
		c.Must("select * from v2")
		c.Fails(insert, "WF001")
	}},
	{"setter in an operator", enter + "create function op(text, text) returns text language sql as 'select enter($2)'; create operator ### (leftarg = text, rightarg = text, function = op)", "", func(c *client, _ *world) {
		c.Must("select ''::text ### '" + stale + "'::text")
		c.Fails(insert, "WF001")
	}},
	{"view renamed as a table", enter, "", func(c *client, _ *world) {
		c.Must("alter table dirty rename to harmless", "set wirefence.token = '"+stale+"'")
		c.Fails("select * from harmless", "WF001")
	}},
	{"function changed in a DO block", enter, "", func(c *client, _ *world) {
		c.Must("do $$ begin create or replace function pure(i int) returns int language sql volatile as 'insert into public.jobs values (0, ''x''); select 1'; end $$")
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select pure(1)", "WF001")
	}},
	{"cast to a type of another name", enter + `create type mood as (a int);
		create function to_int(mood) returns int language sql volatile as 'insert into public.jobs values (0, ''x''); select 1';
		create cast (mood as int) with function to_int(mood);
		create function to_bool(mood) returns bool language sql volatile as 'insert into public.jobs values (0, ''x''); select true';
		create cast (mood as bool) with function to_bool(mood)`, "", func(c *client, _ *world) {
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select row(1)::mood::int", "WF001")
		c.Fails("select cast(row(1)::mood as integer)", "WF001")
		c.Fails("select cast(row(1)::mood as boolean)", "WF001")
	}},
	{"argument's default", enter + "create function f(a int default writes(1)) returns int language sql immutable as 'select a'", "", func(c *client, _ *world) {
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select f()", "WF001")
	}},
	{"argument of a domain that writes", enter + `create function valid(text) returns boolean language sql volatile as 'insert into public.jobs values (0, ''x''); select true';
		create domain checked as text check (valid(value)); create function takes(checked) returns int language sql immutable as 'select 1'`, "", func(c *client, _ *world) {
		c.Must("set wirefence.token = '" + stale + "'")
		c.Fails("select takes('x')", "WF001")
	}},
	{"view that locks rows", enter + "create view locking as select * from cell for update", "", func(c *client, w *world) {
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
		for _, b := range slices.Concat(bypassesBySetters, bypassesByMessages) {
			t.Run(b.name, func(t *testing.T) {
				w := newWorld(t, shared.Major)
				w.Exec(t, b.objects)
				b.run(w.fenced(t, b.fence), w)
				w.wantRows(t, 0)
			})
		}
	})
}
