package fencingtest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Before a pooler, the stamp overrides what another client has left in the session variable,
// and the client's own fence overrides the stamp.
func TestBehindThePoolerStampsGoBeforeForeignSettings(t *testing.T) {
	w := poolerBehind(t, one, proxy.Options{})
	for _, c := range []struct{ stamp, unfenced, read string }{{"orders=34", "", ""}, {"orders=33", "WF001", "WF001"}, {"", "WF007", ""}} {
		w := w.beforePooler(t, one, proxy.Options{Lease: newLease(c.stamp)})
		early := w.connect(t)
		for _, left := range []string{"orders=34", "orders=33"} {
			w.leave(t, left)
			for name, conn := range map[string]*client{"logged in before": early, "logged in behind": w.connect(t)} {
				for _, p := range protocols[:2] {
					stack.WantState(t, p.run(conn, insertOf(0)), c.unfenced, c.stamp, left, name, p.name, "unfenced")
					stack.WantState(t, p.run(conn, insertOf(34)+comment(34)), "", c.stamp, left, name, p.name, "comment")
					stack.WantState(t, p.run(conn, insertOf(33)+comment(33)), "WF001", c.stamp, left, name, p.name, "comment")
					conn.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=33'")
					stack.WantState(t, p.run(conn, insertOf(33)), "WF001", c.stamp, left, name, p.name, "SET LOCAL")
					conn.Must("ROLLBACK", "BEGIN", "SET LOCAL wirefence.token = 'orders=34'")
					stack.WantState(t, p.run(conn, insertOf(34)), "", c.stamp, left, name, p.name, "SET LOCAL")
					conn.Must("COMMIT")
					stack.WantState(t, p.run(conn, "SELECT count(*) FROM jobs"), c.read, c.stamp, left, name, p.name, "a read")
				}
			}
		}
	}
	w.wantRowsOf(t, 33, 0)
	w.wantRowsOf(t, 0, 2*2*2)
	w.wantRowsOf(t, 34, 3*2*2*2*2)
}
