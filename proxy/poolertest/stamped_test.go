package poolertest

import (
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// held is the fence of a lease that doesn't change; "" is none.
type held string

func (h held) Fence() string          { return string(h) }
func (held) Resource() fence.Resource { return "orders" }
func (held) Holder() string           { return "" }
func (held) Changed() <-chan struct{} { return nil }

// Behind a pooler a stamp goes before what another client has left in the session
// variable, and behind what the client itself has set.
func TestBehindThePoolerStampsGoBeforeForeignSettings(t *testing.T) {
	p, _ := behind(t, one, "", proxy.Options{})
	pooler := p.pooler(p.Addr(), one)
	for _, c := range []struct{ stamp, unfenced, read string }{{"orders=34", "", ""}, {"orders=33", "WF001", "WF001"}, {"", "WF007", ""}} {
		addr := p.fencing(pooler, "", proxy.Options{Lease: held(c.stamp)})
		early := p.connect(addr)
		for _, left := range []string{"orders=34", "orders=33"} {
			p.leave(left)
			for name, conn := range map[string]*stack.Client{"logged in before": early, "logged in behind": p.connect(addr)} {
				for protocol, run := range protocols {
					stack.WantState(t, run(conn, insert(0, "")), c.unfenced, c.stamp, left, name, protocol, "unfenced")
					stack.WantState(t, run(conn, insert(34, comment(34))), "", c.stamp, left, name, protocol, "comment")
					stack.WantState(t, run(conn, insert(33, comment(33))), "WF001", c.stamp, left, name, protocol, "comment")
					conn.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=33'")
					stack.WantState(t, run(conn, insert(33, "")), "WF001", c.stamp, left, name, protocol, "SET LOCAL")
					conn.Must("ROLLBACK", "BEGIN", "SET LOCAL wirefence.token = 'orders=34'")
					stack.WantState(t, run(conn, insert(34, "")), "", c.stamp, left, name, protocol, "SET LOCAL")
					conn.Must("COMMIT")
					stack.WantState(t, run(conn, "SELECT count(*) FROM jobs"), c.read, c.stamp, left, name, protocol, "a read")
				}
			}
		}
	}
	p.wantRows(33, 0)
	p.wantRows(0, int64(2*2*len(protocols)))
	p.wantRows(34, 3*2*int64(2*2*len(protocols)))
}
