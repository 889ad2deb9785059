package poolertest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

func TestBehindSessionPoolingSettingsHold(t *testing.T) {
	for protocol, run := range protocols {
		t.Run(protocol, func(t *testing.T) {
			p, addr := behind(t, each, "pooling=session", proxy.Options{})
			c, unfenced := p.connect(addr), p.connect(addr)
			stack.WantState(t, run(c, "SET wirefence.token = 'orders=34'"), "")
			stack.WantState(t, run(c, insert(34, "")), "")
			stack.WantState(t, run(unfenced, insert(0, "")), "")
			p.Exec(t, "SELECT wirefence.seal('orders', 35, 'next')")
			stack.WantState(t, run(c, insert(33, "")), "WF001")
			stack.WantState(t, run(c, "BEGIN"), "")
			stack.WantState(t, run(c, insert(33, "")), "WF001")
			stack.WantState(t, run(c, "ROLLBACK"), "")
			stack.WantState(t, run(c, insert(34, comment(35))), "")
			stack.WantState(t, run(c, "RESET wirefence.token"), "")
			stack.WantState(t, run(c, insert(0, "")), "")
			p.wantRows(33, 0)
			p.wantRows(34, 2)
			p.wantRows(0, 2)
		})
	}
}

func TestDeclaredTransactionPoolingNeedsNoSignOfThePooler(t *testing.T) {
	p := newPlace(t, suite.Server(t, 0))
	addr := p.fencing(p.Addr(), "pooling=transaction", proxy.Options{})
	for protocol, run := range protocols {
		c := p.connect(addr)
		for _, set := range []string{"SET wirefence.token = 'orders=34'", "SELECT set_config('wirefence.token', 'orders=34', false)"} {
			stack.WantState(t, run(c, set), "WF006", protocol, set)
		}
		stack.WantState(t, run(c, "DISCARD ALL"), "", protocol)
		stack.WantState(t, run(c, insert(0, "")), "", protocol)
		c.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=33'")
		stack.WantState(t, run(c, insert(33, "")), "WF001", protocol)
		hangUp(c)
	}
	if n := p.number("SELECT count(*) FROM jobs"); n != 2 {
		t.Errorf("%d rows, want the 2 unfenced ones", n)
	}
}

// TestAFenceInTheStartupPacketIsNotLost: PgBouncer keeps the options of the
// startup packet to itself where it is told to ignore them.
func TestAFenceInTheStartupPacketIsNotLost(t *testing.T) {
	for name, c := range map[string]struct{ addr func(p *place) string }{
		"transaction": {func(p *place) string { return p.fencing(p.pooler(p.Addr(), two), "", proxy.Options{}) }},
		"session":     {func(p *place) string { return p.fencing(p.pooler(p.Addr(), each), "", proxy.Options{}) }},
	} {
		p := newPlace(t, suite.Server(t, 0))
		addr := c.addr(p)
		for _, options := range []string{"-c wirefence.token=orders=34", "--wirefence.token=orders=33", `-c wirefence.to\ken=orders=33`} {
			_, err := stack.TryLogin(t, addr, p.Name, "options", options)
			stack.WantState(t, err, "WF006", name, options)
		}
		if _, err := stack.TryLogin(t, addr, p.Name, "options", "-c search_path=public"); err != nil {
			t.Errorf("%s: options without a fence: %v", name, err)
		}
	}
}

// TestAFenceOfTheDatabaseIsRefused: it comes with every server connection, but another
// client may have put its own in its place.
func TestAFenceOfTheDatabaseIsRefused(t *testing.T) {
	p, addr := behind(t, one, "", proxy.Options{})
	p.connect(addr).Must(insert(0, ""))
	p.Exec(t, "ALTER DATABASE "+p.Name+" SET wirefence.token = 'orders=34'")
	pooler := servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 3} // with new server connections
	_, err := stack.TryLogin(t, p.fencing(p.pooler(p.Addr(), pooler), "", proxy.Options{}), p.Name)
	stack.WantState(t, err, "WF006")
}

// A check shares the transaction of what it covers, and there is no hold behind a
// transaction pooler: what can share none is refused under a fence.
func TestBehindThePoolerNothingIsHeld(t *testing.T) {
	p, addr := behind(t, one, "", proxy.Options{})
	c := p.connect(addr)
	do := "DO $$ BEGIN INSERT INTO jobs (token) VALUES (34); END $$"
	call := func(token string) error { return c.Call(p.function("pg_catalog.lo_create(oid)"), token) }
	for protocol, run := range protocols {
		stack.WantState(t, run(c, do+comment(34)), "WF006", protocol)
		stack.WantState(t, run(c, "CREATE INDEX CONCURRENTLY i ON jobs (token)"+comment(34)), "WF006", protocol)
		c.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=34'")
		stack.WantState(t, run(c, do), "", protocol, "in a block")
		c.Must("COMMIT")
	}
	c.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=34'")
	stack.WantState(t, call("1034"), "", "a function call")
	c.Must("COMMIT", "BEGIN", "SET LOCAL wirefence.token = 'orders=33'")
	stack.WantState(t, call("1033"), "WF001", "a stale function call")
	c.Must("ROLLBACK")
	stack.WantState(t, c.Call(p.function("pg_catalog.set_config(text, text, boolean)"), "wirefence.token", "orders=35", "f"), "WF006", "set_config")
	p.wantRows(34, 2)
	if got := p.number("SELECT min(oid::bigint) + 10000 * count(*) FROM pg_largeobject_metadata"); got != 11034 {
		t.Errorf("the large objects are %d", got)
	}
}
