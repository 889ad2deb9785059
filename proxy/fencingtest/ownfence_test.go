package fencingtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// A statement that sets the variable and writes behind that, all by itself, is
// checked by what it has set.
func TestStatementsThatSetTheirOwnFence(t *testing.T) {
	const objects = `create function write_as(fence text) returns int language plpgsql as $$
			begin perform set_config('wirefence.token', fence, false); insert into public.jobs values (1, 'as'); return 1; end $$;
		create function op(int, text) returns int language sql as $$ select write_as($2) $$; create operator ### (leftarg = int, rightarg = text, function = op);
		create domain valid as text check (write_as(value) = 1);
		create function through(fence text) returns int language sql as $$ select write_as(fence) $$;`
	own := []struct {
		name, sql string
		rows      int
	}{
		{"WITH", "with x as (select set_config('wirefence.token', '?', false) as a) insert into jobs select 1, a from x", 1},
		{"set for the transaction only", "insert into jobs select 1, set_config('wirefence.token', '?', true)", 1},
		{"a function", "select write_as('?')", 1},
		{"a function that calls one", "select through('?')", 1},
		{"a RETURNING", "insert into jobs values (1) returning write_as('?')", 2},
		{"DO", "do $$ begin perform write_as('?'); end $$", 1},
		{"DO by itself", "do $$ begin perform set_config('wirefence.token', '?', false); insert into jobs values (1); end $$", 1},
		{"a comment at the end, and no semicolon", "select write_as('?') -- the last", 1},
		{"a semicolon and blanks at the end", "select write_as('?') ; ", 1},
		{"COPY of a query", "copy (select write_as('?')) to stdout", 1},
		{"CREATE TABLE AS", "create temp table made on commit drop as select write_as('?')", 1},
		{"EXPLAIN ANALYZE", "explain analyze select write_as('?')", 1},
		{"an operator", "select 1 ### '?'", 1},
		{"a domain", "select '?'::valid", 1},
		{"COPY to a program", "copy (select write_as('?')) to program 'cat > /dev/null'", 1},
	}
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.exec(t, objects)
		want, c := 0, db.connect(t)
		for _, p := range protocols {
			for _, s := range own {
				for token, code := range map[string]string{"orders=33": "WF001", "orders=34": "", "orders": "WF004"} {
					sql := strings.ReplaceAll(s.sql, "?", token)
					for _, before := range []string{"select 1", "set wirefence.token = 'orders=34'"} {
						c.must("discard all", before)
						wantCode(t, p.run(c, sql), code, s.name, p.name, token, before)
						if code == "" {
							want += s.rows
						}
						db.wantRows(t, want)
						c.must("begin")
						wantCode(t, p.run(c, sql), code, s.name, p.name, token, before, "in a block")
						c.must("rollback")
						db.wantRows(t, want)
					}
				}
			}
		}
	})
}

// Where the statement stands in its message, and what runs it, makes no difference.
func TestOwnFencesAreFoundEverywhere(t *testing.T) {
	const write = "select write_as('" + stale + "')"
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		for name, run := range map[string]func(c *client){
			"among others": func(c *client) {
				c.fails("insert into jobs values (1); "+write+"; select 1", "WF001")
			},
			"before a COMMIT": func(c *client) {
				c.fails("begin; "+write+"; commit; insert into jobs values (2)", "WF001")
				c.simple("rollback")
			},
			"EXECUTE": func(c *client) {
				c.must("prepare p as " + write)
				c.fails("execute p", "WF001")
			},
			"a Bind of what SQL has prepared": func(c *client) {
				c.must("prepare p as "+write, "select 1")
				wantCode(c.t, firstError(c.exchange(1, &pgproto3.Bind{PreparedStatement: "p"}, &pgproto3.Execute{}, &pgproto3.Sync{})), "WF001")
			},
			"EXECUTE of a Parse": func(c *client) {
				c.exchange(1, &pgproto3.Parse{Name: "p", Query: write}, &pgproto3.Sync{})
				c.fails("execute p", "WF001")
			},
			"a view": func(c *client) {
				c.must("create view seen as "+write, "select 1")
				c.fails("select * from seen", "WF001")
			},
			"an argument's default": func(c *client) {
				c.must("create function defaults(a int default write_as('"+stale+"')) returns int language sql as 'select a'", "select 1")
				c.fails("select defaults()", "WF001")
			},
			"a cursor of a function's": func(c *client) {
				c.must("create function opens() returns refcursor language plpgsql as $$ declare c refcursor := 'c'; begin open c for "+write+"; return c; end $$", "begin", "select opens()")
				c.fails("fetch c", "WF001")
				c.must("rollback")
			},
			"a function that has changed since it was prepared": func(c *client) {
				c.must("create function later(text) returns int language sql as 'select 1'", "prepare p as select later('"+stale+"')")
				c.exchange(1, &pgproto3.Parse{Name: "q", Query: "select later('" + stale + "')"}, &pgproto3.Sync{})
				c.must("create or replace function later(text) returns int language sql as 'select write_as($1)'", "select 1")
				c.fails("execute p", "WF001")
				wantCode(c.t, firstError(c.exchange(1, &pgproto3.Bind{PreparedStatement: "q"}, &pgproto3.Execute{}, &pgproto3.Sync{})), "WF001")
				c.fails("execute q", "WF001")
			},
			"FETCH": func(c *client) {
				c.must("begin", "declare c cursor for "+write)
				c.fails("fetch c", "WF001")
				c.must("commit")
			},
			"a portal row by row": func(c *client) {
				all := c.exchange(1, &pgproto3.Parse{Query: "select write_as(a) from (values ('orders=34'), ('orders=33')) as v(a)"}, &pgproto3.Bind{},
					&pgproto3.Execute{MaxRows: 1}, &pgproto3.Execute{MaxRows: 1}, &pgproto3.Sync{})
				wantCode(c.t, firstError(all), "WF001")
			},
			"in the middle of a batch": func(c *client) {
				all := c.exchange(1, &pgproto3.Parse{Query: write}, &pgproto3.Bind{}, &pgproto3.Execute{},
					&pgproto3.Parse{Query: "set wirefence.token = ''"}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{})
				wantCode(c.t, firstError(all), "WF001")
			},
			"before a Flush": func(c *client) {
				all := c.exchange(1, &pgproto3.Parse{Query: write}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Flush{}, &pgproto3.Sync{})
				wantCode(c.t, firstError(all), "WF001")
			},
		} {
			t.Run(name, func(t *testing.T) {
				db := newDatabase(t, shared.Major, template)
				db.seal(t, "orders", 34)
				db.exec(t, `create function write_as(fence text) returns int language plpgsql as $$
					begin perform set_config('wirefence.token', fence, false); insert into public.jobs values (1, 'as'); return 1; end $$`)
				c := db.connect(t)
				run(c)
				c.must("select 1")
				db.wantRows(t, 0)
			})
		}
	})
}

// What ends its own transactions is let alone, and so is what reads what comes next.
func TestOwnFencesThatCannotBeCheckedBehind(t *testing.T) {
	const sets = "perform set_config('wirefence.token', 'orders=34', true); perform wirefence.check(); insert into public.jobs values (1);"
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.exec(t, "create procedure stepwise() language plpgsql as $$ begin "+sets+" commit; "+sets+" end $$")
		for i, p := range protocols {
			c := db.connect(t)
			wantCode(t, p.run(c, "do $$ begin "+sets+" commit; "+sets+" end $$"), "", p.name)
			c = db.connect(t)
			wantCode(t, p.run(c, "call stepwise()"), "", p.name)
			db.wantRows(t, 4*(i+1))
		}
	})
}

// Where no function sets the variable, it is for the texts alone to tell what does.
func TestSettersInDatabasesWithoutSuchFunctions(t *testing.T) {
	const set = "select set_config('wirefence.token', '" + stale + "', false)"
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		for name, run := range map[string]func(c *client){
			"a Bind of a PREPARE": func(c *client) {
				c.must("prepare p as "+set, "select 1")
				c.exchange(1, &pgproto3.Bind{PreparedStatement: "p"}, &pgproto3.Execute{}, &pgproto3.Sync{})
			},
			"an EXECUTE in the message of its PREPARE": func(c *client) {
				c.fails("prepare p as "+set+"; execute p; "+insert, "WF001")
				c.must("execute p") // a PREPARE is not rolled back
			},
			"FETCH, asked for the variable behind the DECLARE": func(c *client) {
				c.must("begin", "declare c cursor for "+set, "do $$ begin end $$", "fetch c")
			},
			"a portal that SQL declared, asked for the variable before": func(c *client) {
				c.must("begin", "declare c cursor for "+set, "do $$ begin end $$")
				c.exchange(1, &pgproto3.Execute{Portal: "c"}, &pgproto3.Sync{})
			},
		} {
			t.Run(name, func(t *testing.T) {
				db := newDatabase(t, shared.Major, template)
				db.seal(t, "orders", 34)
				c := db.connect(t)
				run(c)
				c.fails(insert, "WF001")
				c.simple("rollback")
				db.wantRows(t, 0)
			})
		}
	})
}
