package poolertest

import (
	"testing"

	"github.com/wirefence/wirefence/proxy"
)

func TestBehindSessionPoolingSettingsHold(t *testing.T) {
	for _, parameters := range []string{"", "pooling=session"} {
		for protocol, run := range protocols {
			t.Run(parameters+protocol, func(t *testing.T) {
				p, addr := behind(t, each, parameters, proxy.Options{})
				c, unfenced := p.connect(addr), p.connect(addr)
				wantState(t, run(c, "SET wirefence.token = 'orders=34'"), "")
				wantState(t, run(c, insert(34, "")), "")
				wantState(t, run(unfenced, insert(0, "")), "")
				p.exec("SELECT wirefence.seal('orders', 35, 'next')")
				wantState(t, run(c, insert(33, "")), "WF001")
				wantState(t, run(c, "BEGIN"), "")
				wantState(t, run(c, insert(33, "")), "WF001")
				wantState(t, run(c, "ROLLBACK"), "")
				wantState(t, run(c, insert(34, comment(35))), "")
				wantState(t, run(c, "RESET wirefence.token"), "")
				wantState(t, run(c, insert(0, "")), "")
				p.wantRows(33, 0)
				p.wantRows(34, 2)
				p.wantRows(0, 2)
			})
		}
	}
}

func TestDeclaredTransactionPoolingRefusesSettingsAtOnce(t *testing.T) {
	p, addr := behind(t, two, "pooling=transaction", proxy.Options{})
	for protocol, run := range protocols {
		c := p.connect(addr)
		for _, set := range []string{"SET wirefence.token = 'orders=34'", "SELECT set_config('wirefence.token', 'orders=34', false)"} {
			wantState(t, run(c, set), "WF006", protocol, set)
		}
		wantState(t, run(c, "DISCARD ALL"), "", protocol)
		wantState(t, run(c, insert(0, "")), "", protocol)
		c.must("BEGIN", "SET LOCAL wirefence.token = 'orders=33'")
		wantState(t, run(c, insert(33, "")), "WF001", protocol)
	}
	if n := p.number("SELECT count(*) FROM jobs"); n != 2 {
		t.Errorf("%d rows, want the 2 unfenced ones", n)
	}
}

// TestAFenceInTheStartupPacketIsNotLost: PgBouncer keeps the options of the
// startup packet to itself where it is told to ignore them.
func TestAFenceInTheStartupPacketIsNotLost(t *testing.T) {
	for name, c := range map[string]struct{ addr func(p *place) string }{
		"transaction": {func(p *place) string { return p.fencing(p.pooler(p.pg.Addr(), two), "", proxy.Options{}) }},
		"session":     {func(p *place) string { return p.fencing(p.pooler(p.pg.Addr(), each), "", proxy.Options{}) }},
	} {
		p := newPlace(t, shared)
		addr := c.addr(p)
		for _, options := range []string{"-c wirefence.token=orders=34", "--wirefence.token=orders=33", `-c wirefence.to\ken=orders=33`} {
			_, err := p.dial(addr, "options", options)
			wantState(t, err, "WF006", name, options)
		}
		if _, err := p.dial(addr, "options", "-c search_path=public"); err != nil {
			t.Errorf("%s: options without a fence: %v", name, err)
		}
	}
}

// TestAFenceOfTheDatabaseIsItsOwn: the database's own fence comes with every server
// connection; another client's doesn't take its place.
func TestAFenceOfTheDatabaseIsItsOwn(t *testing.T) {
	p, addr := behind(t, one, "", proxy.Options{})
	p.exec("ALTER DATABASE " + p.db + " SET wirefence.token = 'orders=34'")
	c := p.connect(addr)
	c.must(insert(34, ""))
	p.connect(addr).must("SET wirefence.token = 'orders=99'")
	c.want("WF006", insert(34, ""))
	p.connect(addr).want("WF006", insert(34, ""))
	p.connect(addr).must("RESET wirefence.token", insert(34, ""))
	p.exec("SELECT wirefence.seal('orders', 35, 'next')")
	c.want("WF001", insert(33, ""))
	p.wantRows(34, 2)
	p.wantRows(33, 0)
}

func TestBehindThePoolerOtherWritesAreChecked(t *testing.T) {
	p, addr := behind(t, one, "", proxy.Options{})
	stranger, c := p.connect(addr), p.connect(addr)
	do := "DO $$ BEGIN INSERT INTO jobs (token) VALUES (34); END $$"
	call := func(token string) error { return c.call(p.function("pg_catalog.lo_create(oid)"), token) }
	c.must("SET wirefence.token = 'orders=34'", do)
	wantState(t, c.extended(do), "", "DO, extended")
	wantState(t, call("1034"), "", "a function call")
	c.want("WF006", "CREATE INDEX CONCURRENTLY i ON jobs (token)")

	stranger.must("SET wirefence.token = 'orders=35'") // where c's was
	c.want("WF006", do)
	wantState(t, c.extended(do), "WF006", "DO, extended, elsewhere")
	wantState(t, call("1035"), "WF006", "a function call, elsewhere")
	wantState(t, c.call(p.function("pg_catalog.set_config(text, text, boolean)"), "wirefence.token", "orders=35", "f"), "WF006", "set_config")

	p.exec("SELECT wirefence.seal('orders', 35, 'next')")
	c.must("SET wirefence.token = 'orders=34'")
	c.want("WF001", do)
	wantState(t, c.extended(do), "WF001", "DO, extended, stale")
	wantState(t, call("1033"), "WF001", "a function call, stale")
	p.wantRows(34, 2)
	p.wantRows(33, 0)
	if got := p.number("SELECT min(oid::bigint) + 10000 * count(*) FROM pg_largeobject_metadata"); got != 11034 {
		t.Errorf("the large objects are %d", got)
	}
}
