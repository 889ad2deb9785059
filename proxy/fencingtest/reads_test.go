package fencingtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// reads run under the session's fence, though they write nothing.
var reads = []string{
	"select 1", "select * from cell where id in (1, 2)", "table cell", "values (1)", "with x as (select * from cell) select * from x",
	"select pure(1), reads(1)", "select * from clean", "select count(*) from jobs", "select current_setting('wirefence.token', true)",
	"explain update cell set n = 1", "explain analyze select pure(1)", "copy cell to stdout", "copy (select pure(1)) to stdout",
	"listen x", "checkpoint",
}

// free commands pass under any fence.
var free = []string{
	"show work_mem", "show all", "set work_mem = '8MB'", "reset work_mem", "set names 'utf8'", "discard plans", "deallocate all",
	"begin", "rollback", "start transaction read only", "rollback",
}

// A superseded holder learns about it at its next statement.
//
// Evidence: I5
func TestAStaleSessionReadsNothing(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		for _, test := range []struct{ variable, comment, want string }{
			{stale, "", "WF001"}, {"orders=34", stale, "WF001"}, {"", stale, "WF001"}, {stale, "orders=34", ""}, {"orders=34", "", ""},
			{"lines=1,orders=33", "", "WF001"}, {"nonsense", "", "WF004"}, {"", "", ""},
		} {
			c := w.begins(t)
			c.Must("set wirefence.token = '" + test.variable + "'")
			behind := ""
			if test.comment != "" {
				behind = " /*wirefence.token='" + test.comment + "'*/"
			}
			for _, p := range protocols {
				for _, sql := range reads {
					stack.WantState(t, p.run(c, sql+behind), test.want, p.name, sql, test)
				}
				for _, sql := range free {
					stack.WantState(t, p.run(c, sql+behind), "", p.name, sql, test)
				}
				c.Must("begin")
				stack.WantState(t, p.run(c, "select * from cell"+behind), test.want, p.name, "in a block", test)
				c.Must("rollback")
			}
			stack.WantState(t, c.Simple("select 1; select * from cell"+behind), test.want, test)
			data, err := c.CopyOut("copy cell to stdout" + behind)
			if stack.WantState(t, err, test.want, test); err == nil && data != "1\t0\n2\t0\n3\t0\n" {
				t.Errorf("%v: COPY brought %q", test, data)
			}
		}
	})
}

// A cursor reads when it is fetched from.
func TestAStaleSessionFetchesNothing(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		c := w.connect(t)
		c.Must("set wirefence.token = 'orders=34'", "begin", "declare c cursor with hold for select * from cell", "commit", "fetch 1 from c")
		w.Seal(t, "orders", 35)
		stack.WantState(t, c.Simple("fetch 1 from c"), "WF001")
		stack.WantState(t, c.Extended("fetch 1 from c"), "WF001")
		stack.WantState(t, c.Simple("begin; declare d cursor for select * from cell"), "WF001")
		c.Must("rollback")
	})
}

// PostgreSQL runs code of the user during Bind: the check of a parameter's domain, and
// IMMUTABLE functions.
func TestABindThatWritesIsFenced(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, shared *world) {
		strict := shared.own(t, proxy.Options{UnfencedWrites: proxy.Reject, Hold: shared.period()})
		for _, test := range []struct {
			w        *world
			variable string
			comment  string
			want     string
		}{
			{shared, stale, "", "WF001"}, {shared, "", stale, "WF001"}, {strict, "", "", "WF002"}, {strict, stale, "", "WF001"}, {shared, "orders=34", "", ""},
		} {
			c := test.w.begins(t)
			c.Must("set wirefence.token = '" + test.variable + "'")
			behind := ""
			if test.comment != "" {
				behind = " /*wirefence.token='" + test.comment + "'*/"
			}
			domain := &pgproto3.Bind{Parameters: [][]byte{[]byte("x")}}
			for name, messages := range map[string][]pgproto3.FrontendMessage{
				"domain":             {parseOf("", "select $1::noted"+behind), domain},
				"domain, described":  {parseOf("", "select $1::noted"+behind), domain, &pgproto3.Describe{ObjectType: 'P'}},
				"domain, executed":   {parseOf("", "select $1::noted"+behind), domain, executeOf("")},
				"IMMUTABLE function": {parseOf("", "select folded(1)"+behind), bindOf("", "")},
				"behind another":     append(stack.Unnamed("select 1"+behind), parseOf("", "select $1::noted"+behind), domain),
				"behind a COMMIT":    append(append(stack.Unnamed("select 1"+behind), stack.Unnamed("commit")...), parseOf("", "select $1::noted"+behind), domain),
				"prepared by a name": {parseOf("n", "select $1::noted"+behind), &pgproto3.Bind{PreparedStatement: "n", Parameters: domain.Parameters}, closeOf('S', "n")},
			} {
				before := shared.rows(t)
				stack.WantState(t, c.Batch(messages...), test.want, name, test.variable, test.comment)
				if after := shared.rows(t); (after == before) != (test.want != "") {
					t.Errorf("%s, %q, %q: %d rows became %d", name, test.variable, test.comment, before, after)
				}
				c.Must("rollback")
				_ = c.Batch(closeOf('S', "n"))
			}
		}
	})
}

// A cursor that is declared by a batch, as drivers do it, leaves the statements that were prepared
// under other names as they are.
func TestACursorOfABatchLeavesOtherNames(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		c := w.begins(t)
		c.Must("set wirefence.token = 'orders=34'")
		stack.WantState(t, c.Batch(parseOf("writes", insert), parseOf("reads", "fetch all in c")), "")
		c.Must("begin")
		stack.WantState(t, c.Batch(parseOf("", "declare c cursor for select 1"), bindOf("", ""), executeOf(""), bindOf("", "reads"), executeOf("")), "")
		stack.WantState(t, c.Batch(bindOf("", "writes"), executeOf("")), "")
		c.Must("commit")
		w.wantRows(t, 1)
	})
}
