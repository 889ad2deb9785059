package fencingtest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// alone are commands that no check can share a transaction with.
var alone = []string{
	"CREATE INDEX CONCURRENTLY i ON jobs (note)",
	"DROP INDEX CONCURRENTLY i",
	"VACUUM jobs",
	"CALL committing()",
	"DO $$ BEGIN INSERT INTO jobs (note) VALUES ('block'); COMMIT; INSERT INTO jobs (note) VALUES ('block'); END $$",
	"REINDEX TABLE CONCURRENTLY cell",
}

// With reuse = once a token serves one transaction, so the proxy takes no hold.
func TestTokensThatAreUsedOnceAreNotHeld(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.Exec(t, "UPDATE wirefence.resource_locks SET reuse = 'once' WHERE resource_id = 'orders'")
		c := w.fenced(t, "orders=34")
		c.Must("INSERT INTO jobs (token) VALUES (34)")
		for range 3 {
			c.Fails("INSERT INTO jobs (token) VALUES (34)", "WF005")
			if n := w.held(t); n != 0 {
				t.Errorf("%d locks are held", n)
			}
		}
		w.Seal(t, "orders", 35)
		c.Must("SET wirefence.token = 'orders=35'")
		c.Fails("CALL committing()", "WF006")
		c.Must("BEGIN", "INSERT INTO jobs (token) VALUES (35)", "INSERT INTO jobs (token) VALUES (35)", "COMMIT")
		w.wantRows(t, 3)
	})
}

// A resource in shadow mode lets every statement pass, and the history has the refusals.
func TestResourcesInShadowMode(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.Exec(t, "UPDATE wirefence.resource_locks SET mode = 'shadow' WHERE resource_id = 'orders'")
		for _, token := range []string{"33", "34"} {
			c := w.fenced(t, "orders="+token)
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
		if n := w.count(t, "SELECT count(*) FROM wirefence.history WHERE kind = 'shadow'"); n == 0 {
			t.Error("nothing was told")
		}
	})
}

// A proxy in shadow mode refuses nothing, and reports what it would refuse otherwise.
func TestProxyInShadowMode(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		told := &refusals{}
		w = w.own(t, proxy.Options{Mode: proxy.Shadow, UnfencedWrites: proxy.Reject, Refusals: told, Hold: suite.Options.Hold})
		writes := append([]string{"INSERT INTO jobs (token) VALUES (1)", "CREATE TABLE new (i int)", "DROP TABLE new"}, alone...)
		for params, want := range map[string]string{"": "WF002", "-c wirefence.token=orders=33": "WF001", "-c wirefence.token=orders=34": ""} {
			for _, p := range protocols[:2] {
				c := w.connect(t, "options", params)
				for _, sql := range writes {
					stack.WantState(t, p.run(c, sql), "", params, p.name, sql)
					expected := ""
					if want != "" {
						expected = want + " shadow=true"
					}
					if got := told.states(); got != expected {
						t.Errorf("%q, %s, %s: told %q, want %q", params, p.name, sql, got, expected)
					}
				}
				c.Must("SELECT 1")
				if got := told.states(); want != "WF001" && got != "" {
					t.Errorf("%q: a read told %q", params, got)
				}
			}
		}
	})
}
