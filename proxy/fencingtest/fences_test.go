package fencingtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// changes are lists of statements. + is an insert that succeeds, - an insert that gets WF001;
// what follows is its comment. A statement behind ! gets WF001 too.
var changes = []struct {
	name string
	do   []string
}{
	{"SET", []string{"+", "SET wirefence.token = 'orders=33'", "-", "SET wirefence.token = 'orders=34'", "+"}},
	{"SET and RESET", []string{"+", "SET wirefence.token = 'orders=33'", "-", "RESET wirefence.token", "+"}},
	{"SET and RESET ALL", []string{"+", "SET wirefence.token = 'orders=33'", "-", "RESET ALL", "+"}},
	{"SET and DISCARD ALL", []string{"+", "SET wirefence.token = 'orders=33'", "-", "DISCARD ALL", "+"}},
	{"set_config", []string{"+", "SELECT set_config('wirefence.token', 'orders=33', false)", "-"}},
	{"name in escapes", []string{"+", `SET U&"wirefence\002etoken" = 'orders=33'`, "-"}},
	{"set_config of a name in escapes", []string{"+", `SELECT set_config(U&'wirefence\002etoken', 'orders=33', false)`, "-"}},
	{"rolled back", []string{"+", "BEGIN", "SET wirefence.token = 'orders=33'", "ROLLBACK", "+"}},
	{"rolled back to a stale one", []string{
		"SET wirefence.token = 'orders=33'", "-", "BEGIN", "SET wirefence.token = 'orders=34'", "+", "ROLLBACK", "-",
	}},
	{"rolled back by an error", []string{"+", "DO $$ BEGIN SET wirefence.token = 'orders=33'; PERFORM 1/0; END $$", "+"}},
	{"SET LOCAL", []string{"+", "BEGIN", "+", "SET LOCAL wirefence.token = 'orders=33'", "-", "ROLLBACK", "+"}},
	{"SET LOCAL in a savepoint", []string{
		"+", "BEGIN", "SAVEPOINT s", "SET LOCAL wirefence.token = 'orders=33'", "ROLLBACK TO s", "+", "COMMIT", "+",
	}},
	{"SET in a savepoint", []string{
		"BEGIN", "SET wirefence.token = 'orders=34'", "SAVEPOINT s", "SET wirefence.token = 'orders=33'", "RELEASE s", "-", "ROLLBACK", "+",
	}},
	{"another resource", []string{"+", "SET wirefence.token = 'other=7'", "+", "SET wirefence.token = 'other=6'", "-"}},
	{"more resources", []string{"+", "SET wirefence.token = 'orders=34,other=6'", "-", "SET wirefence.token = 'other=7,orders=34'", "+"}},
	{"comments", []string{
		"+/*wirefence.token='orders=34'*/", "-/*wirefence.token='orders=33'*/", "+/*wirefence.token='orders=34'*/", "-/*wirefence.token='orders=33'*/",
	}},
	{"comment over the variable", []string{"+", "-/*wirefence.token='orders=33'*/", "+", "-/*wirefence.token='other=6'*/", "+/*wirefence.token='other=7'*/", "+"}},
	{"variable under comments", []string{
		"SET wirefence.token = 'orders=33'", "+/*wirefence.token='orders=34'*/", "-", "+/*wirefence.token='orders=34'*/", "-",
	}},
	{"SET SESSION", []string{"SET wirefence.token = 'orders=33'", "-", "SET SESSION wirefence.token TO 'orders=34'", "+"}},
	{"name with capitals and quotes", []string{"+", `SET WireFence."token" = 'orders=33'`, "-", "RESET wirefence.TOKEN", "+"}},
	{"SET LOCAL over a stale one", []string{"SET wirefence.token = 'orders=33'", "BEGIN", "SET LOCAL wirefence.token = 'orders=34'", "+", "COMMIT", "-"}},
	{"SET in two savepoints", []string{
		"SET wirefence.token = 'orders=33'", "BEGIN", "SET wirefence.token = 'orders=34'", "SAVEPOINT a", "SET wirefence.token = 'orders=33'", "ROLLBACK TO a", "+",
		"SAVEPOINT a", "SET wirefence.token = 'orders=33'", "RELEASE a", "-", "ROLLBACK", "BEGIN", "!SAVEPOINT a", "ROLLBACK",
	}},
	{"set_config in a block", []string{
		"SELECT set_config('wirefence.token', 'orders=34', false)", "+", "BEGIN", "SELECT set_config('wirefence.token', 'orders=33', true)", "-", "ROLLBACK", "+",
		"SELECT set_config('wirefence.token', 'orders=33', false)", "-", "SELECT set_config('wirefence.token', '', false)", "+",
	}},
	{"variable under comments, in a transaction", []string{"SET wirefence.token = 'orders=33'", "BEGIN", "+/*wirefence.token='orders=34'*/", "COMMIT"}},
	{"COMMIT AND CHAIN", []string{"+", "BEGIN", "SET LOCAL wirefence.token = 'other=7'", "COMMIT AND CHAIN", "+", "COMMIT"}},
}

// A check or a hold of one fence never covers another fence of the same session.
func TestChangingFences(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		w.Seal(t, "other", 7)
		for _, change := range changes {
			for _, way := range []struct {
				name string
				run  func(c *client, statements []string) []string
			}{
				{"simple", oneByOne(protocols[0])}, {"extended", oneByOne(protocols[1])}, {"prepared", oneByOne(protocols[2])},
				{"pipelined queries", func(c *client, statements []string) []string {
					return answers(c, queries(statements...), len(statements))
				}},
				{"pipelined batches", func(c *client, statements []string) []string {
					var all []string
					for _, sql := range statements {
						all = append(all, sql, "")
					}
					return answers(c, pipelined(all...), len(statements))
				}},
			} {
				c := w.fenced(t, "orders=34")
				if w.busy {
					w.warm("", c)
				}
				var statements, want []string
				for _, s := range change.do {
					state := ""
					switch {
					case s[0] == '+':
						s = insertOf(34) + s[1:]
					case s[0] == '-':
						s, state = insert+s[1:], "WF001"
					case s[0] == '!':
						s, state = s[1:], "WF001"
					case strings.Contains(s, "1/0"):
						if state = "22012"; !w.busy {
							state = "WF006" // no check covers a DO
						}
					}
					statements, want = append(statements, s), append(want, state)
				}
				got := way.run(c, statements)
				if !slices.Equal(got, want) {
					t.Errorf("%s, %s:\n got %q\nwant %q", change.name, way.name, got, want)
				}
				c.Close()
			}
		}
		w.wantRowsOf(t, 33, 0)
	})
}

func oneByOne(p protocol) func(c *client, statements []string) []string {
	return func(c *client, statements []string) (states []string) {
		for _, sql := range statements {
			states = append(states, stack.State(p.run(c, sql)))
		}
		return states
	}
}

// queries are simple queries.
func queries(statements ...string) (all []pgproto3.FrontendMessage) {
	for _, sql := range statements {
		all = append(all, &pgproto3.Query{String: sql})
	}
	return all
}

// answers sends messages and returns the SQLSTATE of each of n answers, "" for success.
func answers(c *client, messages []pgproto3.FrontendMessage, n int) (states []string) {
	c.T.Helper()
	c.Send(messages...)
	for range n {
		states = append(states, stack.State(stack.Err(c.Ready(1))))
	}
	return states
}
