package holdtest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Under reuse = once each token is one transaction's, so nothing is held.
func TestTokensThatAreUsedOnceAreNotHeld(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.exec(t, "UPDATE wirefence.resource_locks SET reuse = 'once' WHERE resource_id = 'orders'")
		c := w.client(t, "orders=34")
		c.Must("INSERT INTO t (token) VALUES (34)")
		for range 3 {
			c.Fails("INSERT INTO t (token) VALUES (34)", "WF005")
			if n := w.held(t); n != 0 {
				t.Errorf("%d locks are held", n)
			}
		}
		w.seal(t, "orders", 35)
		c.Must("SET wirefence.token = 'orders=35'")
		c.Fails("CALL commits(2)", "WF006")
		c.Must("BEGIN", "INSERT INTO t (token) VALUES (35)", "INSERT INTO t (token) VALUES (35)", "COMMIT")
		if n := w.number(t, "SELECT count(*) FROM t"); n != 3 {
			t.Errorf("%d rows", n)
		}
	})
}

// told collects what would have been refused.
type told struct {
	mu  sync.Mutex
	all []string
}

func (x *told) Refused(r proxy.Refusal) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = append(x.all, fmt.Sprint(r.State, " shadow=", r.Shadow))
}

func (x *told) take() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := strings.Join(x.all, ", ")
	x.all = nil
	return s
}

// A resource in shadow mode: everything passes, and is told in the history.
func TestResourcesInShadowMode(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.exec(t, "UPDATE wirefence.resource_locks SET mode = 'shadow' WHERE resource_id = 'orders'")
		for _, token := range []string{"33", "34"} {
			c := w.client(t, "orders="+token)
			for _, sql := range alone {
				stack.WantState(t, c.Simple(sql), "", token, sql)
				if n := w.held(t); n != 0 {
					t.Errorf("%s: %d locks are held", sql, n)
				}
			}
			for _, sql := range alone {
				stack.WantState(t, c.Extended(sql), "", token, sql)
			}
		}
		if n := w.number(t, "SELECT count(*) FROM wirefence.history WHERE kind = 'shadow'"); n == 0 {
			t.Error("nothing was told")
		}
	})
}

// A proxy in shadow mode refuses nothing, and tells what enforce would refuse.
func TestProxyInShadowMode(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		x := &told{}
		addr := stack.Proxy(t, w.Postgres, proxy.Options{
			Mode: proxy.Shadow, UnfencedWrites: proxy.Reject, Refusals: x, DrainTimeout: time.Second, Hold: suite.Options.Hold,
		})
		writes := append([]string{"INSERT INTO t (token) VALUES (1)", "CREATE TABLE new (i int)", "DROP TABLE new"}, alone...)
		for params, want := range map[string]string{"": "WF002", "-c wirefence.token=orders=33": "WF001", "-c wirefence.token=orders=34": ""} {
			for name, run := range map[string]func(*stack.Client, string) error{"simple": (*stack.Client).Simple, "extended": func(c *stack.Client, sql string) error { return c.Extended(sql) }} {
				c := stack.Login(t, addr, w.Name, "options", params)
				for _, sql := range writes {
					stack.WantState(t, run(c, sql), "", params, name, sql)
					expected := ""
					if want != "" {
						expected = want + " shadow=true"
					}
					if got := x.take(); got != expected {
						t.Errorf("%q, %s, %s: told %q, want %q", params, name, sql, got, expected)
					}
				}
				c.Must("SELECT 1")
				if got := x.take(); want != "WF001" && got != "" {
					t.Errorf("%q: a read told %q", params, got)
				}
			}
		}
	})
}
