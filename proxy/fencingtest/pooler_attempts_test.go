package fencingtest

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Attempts in which a pooler behind the proxy could help: what was prepared before the fence,
// and names that PostgreSQL takes for others.
func TestAttemptsBehindThePooler(t *testing.T) {
	long := strings.Repeat("n", 63)
	w := poolerBehind(t, two, proxy.Options{})
	for _, a := range []struct {
		name string
		run  func(c *client) error
	}{
		{"statement prepared before the fence", func(c *client) error {
			c.Must("BEGIN")
			stack.WantState(t, c.Batch(parseOf("a", insertOf(33))), "")
			c.Must(setLocal(33))
			return c.Batch(bindOf("", "a"), executeOf(""))
		}},
		{"portal bound before the fence", func(c *client) error {
			c.Must("BEGIN")
			stack.WantState(t, c.Batch(parseOf("b", insertOf(33)), bindOf("p", "b")), "")
			c.Must(setLocal(33))
			return c.Batch(executeOf("p"))
		}},
		{"SET LOCAL behind a text that failed ahead of its COMMIT", func(c *client) error {
			const another = " /*wirefence.token='other=7'*/"
			c.Must("BEGIN", setLocal(33), "SAVEPOINT a"+another)
			if c.Simple("SELECT 1/0; COMMIT"+another) == nil {
				return nil
			}
			c.Must("ROLLBACK TO a")
			return c.Simple(insertOf(33))
		}},
		{"portal by another name that is cut to the same", func(c *client) error {
			return c.Batch(parseOf("c", insertOf(33)+comment(33)), bindOf(long+"1", "c"), executeOf(long+"2"))
		}},
		{"portal with a comment, behind a DECLARE of another", func(c *client) error {
			c.Must("BEGIN", "DECLARE other CURSOR FOR SELECT 1")
			return c.Batch(parseOf("d", insertOf(33)+comment(33)), bindOf("p", "d"), executeOf("p"))
		}},
		{"Parse in place of the proxy's check", func(c *client) error {
			c.Must("BEGIN", "UPDATE jobs SET token = token"+comment(34))
			stack.WantState(t, c.Batch(closeOf('S', "_wirefence_check"), parseOf("_wirefence_check", "SELECT $1::text")), "")
			return c.Batch(parseOf("", insertOf(33)+comment(33)), bindOf("", ""), executeOf(""))
		}},
	} {
		t.Run(a.name, func(t *testing.T) {
			c := w.connect(t)
			stack.WantState(t, a.run(c), "WF001")
			c.Must("ROLLBACK")
		})
	}
	w.wantRowsOf(t, 33, 0)
}
