package holdtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// A statement of these lists that begins with + is an insert that succeeds, one with -
// an insert that gets WF001; what follows is its comment.
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
	{"COMMIT AND CHAIN", []string{"+", "BEGIN", "SET LOCAL wirefence.token = 'orders=33'", "COMMIT AND CHAIN", "+", "COMMIT"}},
}

// A hold of one fence never covers another, whichever way it changes.
func TestChangingFences(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.seal(t, "other", 7)
		for _, change := range changes {
			for _, way := range []struct {
				name string
				run  func(c *stack.Client, statements []string) []string
			}{{"one by one", oneByOne}, {"pipelined", pipelined}, {"batches", batches}} {
				c := w.client(t, "orders=34")
				w.busy(t, c)
				var statements, want []string
				for _, s := range change.do {
					state := ""
					switch s[0] {
					case '+':
						s = "INSERT INTO t (token) VALUES (34)" + s[1:]
					case '-':
						s, state = "INSERT INTO t (token) VALUES (33)"+s[1:], "WF001"
					}
					if strings.Contains(s, "1/0") {
						state = "22012"
					}
					statements, want = append(statements, s), append(want, state)
				}
				got := way.run(c, statements)
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s, %s:\n got %q\nwant %q", change.name, way.name, got, want)
				}
				c.Close()
			}
		}
		if stale := w.number(t, "SELECT count(*) FROM t WHERE token = 33"); stale > 0 {
			t.Errorf("%d stale rows", stale)
		}
	})
}

func oneByOne(c *stack.Client, statements []string) (states []string) {
	for _, sql := range statements {
		states = append(states, stack.State(c.Simple(sql)))
	}
	return states
}

func pipelined(c *stack.Client, statements []string) []string {
	var all []pgproto3.FrontendMessage
	for _, sql := range statements {
		all = append(all, &pgproto3.Query{String: sql})
	}
	return answers(c, all, len(statements))
}

func batches(c *stack.Client, statements []string) []string {
	var all []pgproto3.FrontendMessage
	for _, sql := range statements {
		all = append(append(all, stack.Unnamed(sql)...), &pgproto3.Sync{})
	}
	return answers(c, all, len(statements))
}

// answers sends messages and returns the SQLSTATE of each of n answers, "" for success.
func answers(c *stack.Client, messages []pgproto3.FrontendMessage, n int) (states []string) {
	c.Send(messages...)
	for range n {
		states = append(states, stack.State(stack.Err(c.Ready(1))))
	}
	return states
}
