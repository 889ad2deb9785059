package fencingtest

import (
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

func TestBehindSessionPoolingSettingsHold(t *testing.T) {
	for _, p := range protocols[:2] {
		t.Run(p.name, func(t *testing.T) {
			w := poolerBehind(t, each, proxy.Options{Upstream: "?pooling=session"})
			c, unfenced := w.connect(t), w.connect(t)
			stack.WantState(t, p.run(c, "SET wirefence.token = 'orders=34'"), "")
			stack.WantState(t, p.run(c, insertOf(34)), "")
			stack.WantState(t, p.run(unfenced, insertOf(0)), "")
			w.Exec(t, "SELECT wirefence.seal('orders', 35, 'next')")
			stack.WantState(t, p.run(c, insertOf(33)), "WF001")
			stack.WantState(t, p.run(c, "BEGIN"), "")
			stack.WantState(t, p.run(c, insertOf(33)), "WF001")
			stack.WantState(t, p.run(c, "ROLLBACK"), "")
			stack.WantState(t, p.run(c, insertOf(34)+comment(35)), "")
			stack.WantState(t, p.run(c, "RESET wirefence.token"), "")
			stack.WantState(t, p.run(c, insertOf(0)), "")
			w.wantRowsOf(t, 33, 0)
			w.wantRowsOf(t, 34, 2)
			w.wantRowsOf(t, 0, 2)
		})
	}
}

func TestDeclaredTransactionPoolingNeedsNoSignOfThePooler(t *testing.T) {
	w := newPooled(t, oldAndNew[0])
	w = w.own(t, proxy.Options{Upstream: "postgres://" + w.Addr() + "/?pooling=transaction"})
	for _, p := range protocols[:2] {
		c := w.connect(t)
		for _, set := range []string{"SET wirefence.token = 'orders=34'", "SELECT set_config('wirefence.token', 'orders=34', false)"} {
			stack.WantState(t, p.run(c, set), "WF006", p.name, set)
		}
		stack.WantState(t, p.run(c, "DISCARD ALL"), "", p.name)
		stack.WantState(t, p.run(c, insertOf(0)), "", p.name)
		c.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=33'")
		stack.WantState(t, p.run(c, insertOf(33)), "WF001", p.name)
		hangUp(c)
	}
	if n := w.rows(t); n != 2 {
		t.Errorf("%d rows, want the 2 unfenced ones", n)
	}
}

// PgBouncer drops the options of the startup packet if it is told to ignore them, so the proxy
// refuses a fence there.
func TestAFenceInTheStartupPacketIsNotLost(t *testing.T) {
	for name, cfg := range map[string]servers.PgBouncerConfig{"transaction": two, "session": each} {
		w := poolerBehind(t, cfg, proxy.Options{})
		for _, options := range []string{"-c wirefence.token=orders=34", "--wirefence.token=orders=33", `-c wirefence.to\ken=orders=33`} {
			_, err := stack.TryLogin(t, w.proxy, w.Name, "options", options)
			stack.WantState(t, err, "WF006", name, options)
		}
		if _, err := stack.TryLogin(t, w.proxy, w.Name, "options", "-c search_path=public"); err != nil {
			t.Errorf("%s: options without a fence: %v", name, err)
		}
	}
}

// A database's default fence comes with each server connection, but another client may have
// replaced it, so the proxy refuses it.
func TestAFenceOfTheDatabaseIsRefused(t *testing.T) {
	w := poolerBehind(t, one, proxy.Options{})
	w.connect(t).Must(insertOf(0))
	w.Exec(t, "ALTER DATABASE "+w.Name+" SET wirefence.token = 'orders=34'")
	pooler := servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 3} // with new server connections
	_, err := stack.TryLogin(t, w.beforePooler(t, pooler, proxy.Options{}).proxy, w.Name)
	stack.WantState(t, err, "WF006")
}

// The proxy takes no hold before a transaction pooler, so it refuses commands with a fence that
// cannot share the transaction of a check.
func TestBehindThePoolerNothingIsHeld(t *testing.T) {
	w := poolerBehind(t, one, proxy.Options{})
	c := w.connect(t)
	do := "DO $$ BEGIN INSERT INTO jobs (token) VALUES (34); END $$"
	call := func(token string) error { return c.Call(w.function(t, "pg_catalog.lo_create(oid)"), token) }
	for _, p := range protocols[:2] {
		stack.WantState(t, p.run(c, do+comment(34)), "WF006", p.name)
		stack.WantState(t, p.run(c, "CREATE INDEX CONCURRENTLY i ON jobs (token)"+comment(34)), "WF006", p.name)
		c.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=34'")
		stack.WantState(t, p.run(c, do), "", p.name, "in a block")
		c.Must("COMMIT")
	}
	c.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=34'")
	stack.WantState(t, call("1033"), "WF006", "a function call that no check of its transaction covers")
	c.Must("ROLLBACK", "BEGIN", "SET LOCAL wirefence.token = 'orders=34'", "SELECT 1")
	stack.WantState(t, call("1034"), "", "a function call behind a check")
	c.Must("COMMIT")
	stack.WantState(t, c.Call(w.function(t, "pg_catalog.set_config(text, text, boolean)"), "wirefence.token", "orders=35", "f"), "WF006", "set_config")
	w.wantRowsOf(t, 34, 2)
	if got := w.count(t, "SELECT min(oid::bigint) + 10000 * count(*) FROM pg_largeobject_metadata"); got != 11034 {
		t.Errorf("the large objects are %d", got)
	}
}

// Behind a pooler that pools sessions a hold lasts until it is wanted. None is left on the
// server connection that the next client gets, unless the pooler resets nothing: then a
// takeover ends that connection.
func TestBehindSessionPoolingAHoldLasts(t *testing.T) {
	for name, reset := range map[string]string{"reset": "DISCARD ALL", "not reset": ""} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, oldAndNew[0])
			pooler := servers.PgBouncerConfig{PoolMode: "session", PoolSize: 1, Passwords: map[string]string{"app": ""}, Settings: map[string]string{"server_reset_query": reset}}
			w = w.beforePooler(t, pooler, proxy.Options{Upstream: "?pooling=session", DatabaseURL: w.URL(w.Name)})
			c := w.connect(t, "user", "app")
			c.Must("SET wirefence.token = 'orders=34'")
			busy := func() { c.Must(insertOf(34), "SELECT 1", "SELECT 2") }
			stack.Eventually(t, "the session holds for four times WIREFENCE_HOLD", func() bool {
				for began := time.Now(); time.Since(began) < 200*time.Millisecond; {
					if busy(); w.held(t) != 1 {
						return false
					}
				}
				return true
			})
			began := time.Now()
			w.Exec(t, "SELECT wirefence.seal('orders', 35, 'next')")
			if took := time.Since(began); took > time.Second {
				t.Errorf("a seal took %s", took)
			}
			c.Fails(insertOf(34), "WF001")
			c.Must("SET wirefence.token = 'orders=35'")
			stack.Eventually(t, "the session holds", func() bool { c.Must("SELECT 1", "SELECT 2", "SELECT 3"); return w.held(t) == 1 })
			c.Close()
			next := w.connect(t, "user", "app")
			if reset != "" {
				// PgBouncer may have closed the server connection instead, whose backend takes a moment.
				stack.Eventually(t, "no lock is left for the next client", func() bool { return w.held(t) == 0 })
			}
			began = time.Now()
			w.Exec(t, "SELECT wirefence.seal('orders', 36, 'the one after')")
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("a seal behind the session took %s", took)
			}
			if reset != "" {
				next.Must("SET wirefence.token = 'orders=36'", insertOf(36))
			}
			w.wantRowsOf(t, 35, 0)
		})
	}
}
