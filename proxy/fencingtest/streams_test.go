package fencingtest

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// scripts are what a client sends, step by step, each up to a ReadyForQuery.
// Direct and behind a check the answers are the same: no row of the check, no
// other order, and errors at the same position.
var scripts = [][][]pgproto3.FrontendMessage{
	{queries("insert into jobs values (1), (2)"), queries("select * from jobs order by 1"), queries("update cell set n = 5 returning *; select 1; select 2")},
	{queries("insert into jobs values (1); commit; insert into jobs values (2); rollback; select 3")},
	{queries("begin"), queries("insert into jobs values (1) returning *"), queries("savepoint a; delete from jobs; rollback to a; insert into jobs values (2); table jobs"), queries("commit")},
	{queries("begin; insert into jobs values (1); selec 1; commit")},
	{queries("insert into jobs values (1); insert into jobs valeus (2)")},
	{queries("insert into jobs values (1, 'ü€𝄞', nothing)"), queries("  update cell set nö = 'é' where id = 1")},
	{queries("select 'ü€'; insert into jobs values (1); select 'ü€', unknown_column from cell; select 2")},
	{queries("select 1; insert into jobs values (1, 'é'); select 1/0; insert into jobs values (2)")},
	{queries("insert into jobs values (1); commit; /*ü*/ insert into jobs values (1, 'é') returning missing")},
	{queries("insert into jobs select token from missing"), queries("create table cell (a int)"), queries("update cell set n = n / 0"), queries("drop table missing")},
	{queries("select writes(1), nextval('counter'); select 'é' || writes('x')")},
	{queries("do $$ begin raise notice 'one'; insert into jobs values (1); raise exception 'twö'; end $$")},
	{queries("drop table if exists missing"), queries(""), queries(";"), queries("insert into jobs values (1);;")},
	{queries("copy (insert into jobs values (1) returning *) to stdout")},
	{queries("insert into cell values (1, 1)"), queries("insert into cell values (10, 1) on conflict do nothing")},
	{queries("listen x; notify x, 'y'")},
	{append(stack.Unnamed("insert into jobs values (1) returning *"), &pgproto3.Sync{}), append(stack.Unnamed("update cell set n = 1"), &pgproto3.Sync{})},
	{append(stack.Unnamed("insert into jobs values (1, 'ü', nö)"), &pgproto3.Sync{}), append(stack.Unnamed("insert into jobs values (1)"), &pgproto3.Sync{})},
	{append(stack.Unnamed("select 'ü', missing"), &pgproto3.Sync{}), append(stack.Unnamed("delete from cell returning *"), &pgproto3.Sync{})},
	{append(slices.Concat(stack.Unnamed("insert into jobs values (1)"), stack.Unnamed("select count(*) from jobs"), stack.Unnamed("select 1/0"), stack.Unnamed("insert into jobs values (1)")), &pgproto3.Sync{})},
	{append(slices.Concat(stack.Unnamed("begin"), stack.Unnamed("insert into jobs values (1)"), stack.Unnamed("select * from jobs")), &pgproto3.Sync{}), queries("table jobs"), queries("rollback")},
	{{&pgproto3.Parse{Name: "w", Query: "insert into jobs values ($1, $2) returning *", ParameterOIDs: []uint32{20, 25}}, &pgproto3.Describe{ObjectType: 'S', Name: "w"}, &pgproto3.Sync{}},
		{&pgproto3.Bind{PreparedStatement: "w", Parameters: [][]byte{[]byte("1"), []byte("é")}}, &pgproto3.Execute{}, &pgproto3.Sync{}},
		{&pgproto3.Bind{PreparedStatement: "w", Parameters: [][]byte{[]byte("x"), nil}}, &pgproto3.Execute{}, &pgproto3.Sync{}},
		{&pgproto3.Close{ObjectType: 'S', Name: "w"}, &pgproto3.Sync{}}},
	{queries("begin"), {&pgproto3.Parse{Query: "select writes(a) from generate_series(1, 5) a"}, &pgproto3.Bind{DestinationPortal: "p"}, &pgproto3.Execute{Portal: "p", MaxRows: 2}, &pgproto3.Sync{}},
		{&pgproto3.Execute{Portal: "p", MaxRows: 2}, &pgproto3.Execute{Portal: "p"}, &pgproto3.Close{ObjectType: 'P', Name: "p"}, &pgproto3.Sync{}}, queries("commit")},
	{{&pgproto3.Parse{Query: "update cell set n = 1"}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{}}},
	{append(stack.Unnamed("call proc()"), &pgproto3.Sync{}), append(stack.Unnamed("do $$ begin raise notice 'x'; insert into jobs values (1); end $$"), &pgproto3.Sync{}), append(stack.Unnamed("call missing()"), &pgproto3.Sync{})},
}

// varying is what differs between two connections, or with the length of the text.
var varying = regexp.MustCompile(`"PID":\d+|"File":"[^"]*"|"Line":\d+`)

func (c *client) play(script [][]pgproto3.FrontendMessage) (all []string) {
	for _, step := range script {
		for _, m := range c.Exchange(1, step...) {
			text, err := json.Marshal(m.Backend())
			if err != nil {
				c.T.Fatal(err)
			}
			all = append(all, varying.ReplaceAllString(string(text), ""))
		}
	}
	return all
}

func TestAnswersAreTheClientsOwn(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		reset := func() {
			w.Exec(t, "truncate jobs, cell; insert into cell values (1, 0), (2, 0), (3, 0); alter sequence counter restart")
		}
		for i, script := range scripts {
			reset()
			direct := w.connectTo(t, w.Addr())
			want := direct.play(script)
			for name, settings := range map[string][]string{"unfenced": nil, "variable": {"wirefence.token", "orders=34"}, "comment": nil} {
				reset()
				c := w.connect(t, settings...)
				sent := script
				if name == "comment" {
					sent = commented(t, script)
				}
				got := c.play(sent)
				if !slices.Equal(got, want) {
					text, _ := json.Marshal(script)
					t.Errorf("script %d, %s: %s\n%s", i, name, text, difference(got, want))
				}
			}
		}
	})
}

// commented puts a fence behind every text.
func commented(t *testing.T, script [][]pgproto3.FrontendMessage) (all [][]pgproto3.FrontendMessage) {
	t.Helper()
	const fence = " /*wirefence.token='orders=34'*/"
	for _, step := range script {
		var copied []pgproto3.FrontendMessage
		for _, m := range step {
			switch m := m.(type) {
			case *pgproto3.Query:
				copied = append(copied, &pgproto3.Query{String: m.String + fence})
			case *pgproto3.Parse:
				parse := *m
				parse.Query += fence
				copied = append(copied, &parse)
			default:
				copied = append(copied, m)
			}
		}
		all = append(all, copied)
	}
	return all
}

func difference(got, want []string) string {
	for i := range max(len(got), len(want)) {
		g, w := "nothing", "nothing"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			return fmt.Sprintf("message %d\n     got %s\n  direct %s", i, g, w)
		}
	}
	return ""
}
