package poolertest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

func TestBeforeTheProxyCommentsAndLocalSettingsFence(t *testing.T) {
	p, addr := before(t, two, proxy.Options{})
	for protocol, run := range protocols {
		c := p.connect(addr)
		for _, token := range []int{34, 33} {
			want := map[int]string{34: "", 33: "WF001"}[token]
			stack.WantState(t, run(c, insert(token, comment(token))), want, protocol, token)
			c.Must("BEGIN")
			stack.WantState(t, run(c, "SET LOCAL wirefence.token = 'orders="+itoa(token)+"'"), "", protocol)
			stack.WantState(t, run(c, insert(token, "")), want, protocol, "SET LOCAL", token)
			c.Must("ROLLBACK")
			stack.WantState(t, run(c, insert(0, "")), "", protocol, "unfenced, behind a fence")
		}
	}
	p.wantRows(33, 0)
	p.wantRows(34, 2)
	p.wantRows(0, 4)
}

// TestBeforeTheProxyASettingLeaks shows what no proxy behind a transaction pooler
// can see: that its session's client has changed. The next client writes under
// the fence that the last one has left.
func TestBeforeTheProxyASettingLeaks(t *testing.T) {
	p, addr := before(t, one, proxy.Options{UnfencedWrites: proxy.Reject})
	a, b := p.connect(addr), p.connect(addr)
	b.Fails(insert(0, ""), "WF002")
	a.Must("SET wirefence.token = 'orders=34'")
	b.Must(insert(34, "")) // as if it were a's
	b.Fails(insert(33, comment(33)), "WF001")
	p.Exec(t, "SELECT wirefence.seal('orders', 35, 'next')")
	b.Fails(insert(33, ""), "WF001")
	p.wantRows(33, 0)
}

// TestBeforeTheProxyAResetStopsTheLeak has PgBouncer reset the variable between
// transactions: then a setting reaches no later transaction, its client's own
// included, and where fences are obligatory such a write is refused.
func TestBeforeTheProxyAResetStopsTheLeak(t *testing.T) {
	cfg := servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 1, Settings: map[string]string{
		"server_reset_query": "RESET wirefence.token", "server_reset_query_always": "1",
	}}
	p, addr := before(t, cfg, proxy.Options{UnfencedWrites: proxy.Reject})
	a, b := p.connect(addr), p.connect(addr)
	for range 3 {
		a.Must("SET wirefence.token = 'orders=34'")
		b.Fails(insert(0, ""), "WF002")
		a.Fails(insert(0, ""), "WF002")
		a.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=34'", insert(34, ""), "COMMIT", insert(34, comment(34)))
	}
	p.wantRows(0, 0)
	p.wantRows(34, 6)
}
