package fencingtest

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// A statement that sets the variable runs under the fence that the session had before. The new
// one counts from the next statement on. To write under its own fence, a statement calls
// wirefence.check().
func TestStatementsThatSetTheirOwnFence(t *testing.T) {
	const objects = `create function write_as(fence text) returns int language plpgsql as $$
			begin perform set_config('wirefence.token', fence, false); insert into public.jobs values (1, 'as'); return 1; end $$;
		create function checked_as(fence text) returns int language plpgsql as $$
			begin perform set_config('wirefence.token', fence, false); perform wirefence.check(); insert into public.jobs values (1, 'as'); return 1; end $$;
		create function op(int, text) returns int language sql as $$ select write_as($2) $$; create operator ### (leftarg = int, rightarg = text, function = op);
		create domain valid as text check (write_as(value) = 1);`
	own := []string{
		"with x as (select set_config('wirefence.token', '?', false) as a) insert into jobs select 1, a from x",
		"insert into jobs select 1, set_config('wirefence.token', '?', false)", "select write_as('?')", "select checked_as('?')",
		"insert into jobs values (1) returning write_as('?')", "copy (select write_as('?')) to stdout", "explain analyze select write_as('?')",
		"select 1 ### '?'", "select '?'::valid", "copy (select write_as('?')) to program 'cat > /dev/null'",
	}
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		w.Exec(t, objects)
		for _, p := range protocols {
			for _, sql := range own {
				c := w.connect(t)
				c.Must("set wirefence.token = '" + stale + "'")
				for _, token := range []string{"orders=34", stale, ""} {
					stack.WantState(t, p.run(c, strings.ReplaceAll(sql, "?", token)), "WF001", sql, p.name, "in a stale session")
				}
				w.wantRows(t, 0)
				c.Must("set wirefence.token = 'orders=34'")
				want := ""
				if strings.Contains(sql, "checked") {
					want = "WF001"
				}
				stack.WantState(t, p.run(c, strings.ReplaceAll(sql, "?", stale)), want, sql, p.name)
				// What a function sets under a hold isn't followed.
				if want == "" && (!w.busy || strings.Contains(sql, "wirefence.token")) {
					stack.WantState(t, p.run(c, insert), "WF001", sql, p.name, "behind it")
				}
				c.Close()
				w.wantRowsOf(t, 33, 0)
				w.Exec(t, "truncate jobs")
			}
			c := w.connect(t)
			stack.WantState(t, p.run(c, "select checked_as('"+stale+"')"), "WF001", p.name)
			w.wantRows(t, 0)
			stack.WantState(t, p.run(c, "select checked_as('orders=34')"), "", p.name)
			w.wantRows(t, 1)
			w.Exec(t, "truncate jobs")
		}
	})
}

// A procedure or a block that ends its own transactions can check each of them.
func TestOwnFencesThatCannotBeCheckedBehind(t *testing.T) {
	const sets = "perform set_config('wirefence.token', 'orders=34', true); perform wirefence.check(); insert into public.jobs values (1);"
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.Exec(t, "create procedure stepwise() language plpgsql as $$ begin "+sets+" commit; "+sets+" end $$")
		for i, p := range protocols {
			c := w.connect(t)
			stack.WantState(t, p.run(c, "do $$ begin "+sets+" commit; "+sets+" end $$"), "", p.name)
			c = w.connect(t)
			stack.WantState(t, p.run(c, "call stepwise()"), "", p.name)
			w.wantRows(t, 4*(i+1))
		}
	})
}
