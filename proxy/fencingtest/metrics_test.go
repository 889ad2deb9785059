package fencingtest

import (
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// The proxy counts groups by what covered them and bytes by their origin. The counts stay when
// a session ends.
func TestTrafficIsCounted(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w = w.own(t, proxy.Options{Hold: 10 * time.Second})
		counts := func() (c volume) {
			for i, under := range []string{"nothing", "hold", "check"} {
				c.groups[i] = w.metric(t, "wirefence_groups_total", map[string]string{"under": under})
			}
			for i, from := range []string{"client", "server"} {
				c.bytes[i] = w.metric(t, "wirefence_read_bytes_total", map[string]string{"from": from})
			}
			return c
		}
		c := w.connect(t)
		for _, p := range protocols {
			was := counts()
			for range 3 {
				stack.WantState(t, p.run(c, "select repeat('x', 10000)"), "", p.name)
			}
			if is := counts(); is.groups[0] < was.groups[0]+3 || is.groups[1] != was.groups[1] || is.groups[2] != was.groups[2] ||
				is.bytes[0] < was.bytes[0]+75 || is.bytes[0] > was.bytes[0]+5_000 || is.bytes[1] < was.bytes[1]+30_000 {
				t.Errorf("%s: three selects make %v of %v", p.name, is, was)
			}
		}
		unfenced := counts().groups[0]
		for _, p := range protocols {
			was := counts()
			for range 5 {
				stack.WantState(t, p.run(c, "select 1 /*wirefence.token='orders=34'*/"), "", p.name)
			}
			if is := counts(); is.groups[1] < was.groups[1]+3 || is.groups[0] != unfenced {
				t.Errorf("%s: five fenced selects make %v of %v", p.name, is, was)
			}
		}
		was := counts()
		c.Close()
		stack.Eventually(t, "the session has ended", func() bool { return w.metric(t, "wirefence_sessions", nil) == 0 })
		const giveBack = 300 // the session holds, so the proxy has the server answer once more
		if is := counts(); is.groups != was.groups || is.bytes[1] < was.bytes[1] || is.bytes[1] > was.bytes[1]+giveBack {
			t.Errorf("counted %v before the end of the session, %v behind it", was, is)
		}
	})
}

type volume struct {
	groups [3]int // under nothing, a hold, a check
	bytes  [2]int // of the client, of the server
}

// The proxy measures checks and groups under a fence, and counts refusals by resource.
func TestFencesAreMeasured(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.Seal(t, "invoices", 7)
		w.Exec(t, "SELECT wirefence.set_undeclared('refuse', 'a test')")
		w = w.own(t, proxy.Options{ResourceLabel: func(r fence.Resource) string {
			if r == "orders" {
				return "orders"
			}
			return "other"
		}})
		c := w.connect(t)
		c.Must("select 1 /*wirefence.token='orders=34'*/")
		c.Must("begin", "/*wirefence.token='orders=34'*/ select 1", "rollback")
		if groups, checks := w.metric(t, "wirefence_fenced_group_seconds", nil), w.metric(t, "wirefence_fence_wait_seconds", map[string]string{"kind": "check"}); groups != 1 || checks != 1 {
			t.Errorf("%d groups and %d checks were timed, not the first of each", groups, checks)
		}
		c.Must("vacuum jobs /*wirefence.token='orders=34'*/")
		if n := w.metric(t, "wirefence_fence_wait_seconds", map[string]string{"kind": "exchange"}); n < 1 {
			t.Error("no exchange was timed")
		}
		for _, p := range protocols {
			for _, try := range []struct{ fence, label, state string }{
				{"orders=33", "orders", "WF001"}, {"invoices=6", "other", "WF001"}, {"missing=1", "other", "WF008"},
			} {
				labels := map[string]string{"resource": try.label, "sqlstate": try.state, "shadow": "false"}
				was := w.metric(t, "wirefence_resource_refusals_total", labels)
				stack.WantState(t, p.run(c, "select 1 /*wirefence.token='"+try.fence+"'*/"), try.state, p.name, try.fence)
				if is := w.metric(t, "wirefence_resource_refusals_total", labels); is != was+1 {
					t.Errorf("%s, %s: %d refusals became %d", p.name, try.fence, was, is)
				}
			}
		}
	})
}
