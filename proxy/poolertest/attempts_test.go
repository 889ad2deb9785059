package poolertest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// The attempts of fencingtest in which a pooler behind the proxy could help: what
// was prepared before the fence, and names that PostgreSQL takes for others.
func TestAttemptsBehindThePooler(t *testing.T) {
	long := strings.Repeat("n", 63)
	local := "SET LOCAL wirefence.token = 'orders=33'"
	parse := func(name, sql string) *pgproto3.Parse { return &pgproto3.Parse{Name: name, Query: sql} }
	bind := func(portal, name string) *pgproto3.Bind {
		return &pgproto3.Bind{DestinationPortal: portal, PreparedStatement: name}
	}
	execute := func(portal string) *pgproto3.Execute { return &pgproto3.Execute{Portal: portal} }
	p, addr := behind(t, two, "", proxy.Options{})
	for _, a := range []struct {
		name string
		run  func(c *stack.Client, send func(...pgproto3.FrontendMessage) error) error
	}{
		{"statement prepared before the fence", func(c *stack.Client, send func(...pgproto3.FrontendMessage) error) error {
			c.Must("BEGIN")
			stack.WantState(t, send(parse("a", insert(33, ""))), "")
			c.Must(local)
			return send(bind("", "a"), execute(""))
		}},
		{"portal bound before the fence", func(c *stack.Client, send func(...pgproto3.FrontendMessage) error) error {
			c.Must("BEGIN")
			stack.WantState(t, send(parse("b", insert(33, "")), bind("p", "b")), "")
			c.Must(local)
			return send(execute("p"))
		}},
		{"portal by another name that is cut to the same", func(_ *stack.Client, send func(...pgproto3.FrontendMessage) error) error {
			return send(parse("c", insert(33, comment(33))), bind(long+"1", "c"), execute(long+"2"))
		}},
		{"portal with a comment, behind a DECLARE of another", func(c *stack.Client, send func(...pgproto3.FrontendMessage) error) error {
			c.Must("BEGIN", "DECLARE other CURSOR FOR SELECT 1")
			return send(parse("d", insert(33, comment(33))), bind("p", "d"), execute("p"))
		}},
		{"Parse in place of the proxy's check", func(c *stack.Client, send func(...pgproto3.FrontendMessage) error) error {
			c.Must("BEGIN", "UPDATE jobs SET token = token"+comment(34))
			stack.WantState(t, send(&pgproto3.Close{ObjectType: 'S', Name: "_wirefence_check"}, parse("_wirefence_check", "SELECT $1::text")), "")
			return send(parse("", insert(33, comment(33))), bind("", ""), execute(""))
		}},
	} {
		t.Run(a.name, func(t *testing.T) {
			c := p.connect(addr)
			stack.WantState(t, a.run(c, c.Batch), "WF001")
			c.Must("ROLLBACK")
		})
	}
	p.wantRows(33, 0)
}
