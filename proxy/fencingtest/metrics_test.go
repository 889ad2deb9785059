package fencingtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// The proxy counts groups by what covered them and bytes by their origin, also of sessions that have
// ended, measures checks and groups under a fence, and counts refusals by resource.
func TestFencesAreMeasured(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.Seal(t, "invoices", 7)
		w.Exec(t, "SELECT wirefence.set_undeclared('refuse', 'a test')")
		w = w.own(t, proxy.Options{Hold: 10 * time.Second, ResourceLabel: func(r fence.Resource) string {
			if r == "orders" {
				return "orders"
			}
			return "other"
		}})
		counted := func(metric, label, value string, least, most int) {
			t.Helper()
			if n := w.metric(t, metric, map[string]string{label: value}); n < least || n > most {
				t.Errorf("%s of %s is %d, not %d to %d", metric, value, n, least, most)
			}
		}
		free := w.connect(t)
		free.Must("select repeat('x', 10000)")
		stack.WantState(t, free.Extended("select repeat('x', 10000)"), "")
		stack.WantState(t, free.Prepared("select repeat('x', 10000)"), "")
		held := w.fenced(t, "orders=34")
		w.warm("", held)
		held.Must("select 1")
		for _, c := range []*client{free, held} {
			c.Close()
		}
		stack.Eventually(t, "the sessions have ended", func() bool { return w.metric(t, "wirefence_sessions", nil) == 0 })
		counted("wirefence_groups_total", "under", "nothing", 3, 5)
		counted("wirefence_groups_total", "under", "check", 1, 1000)
		counted("wirefence_groups_total", "under", "hold", 1, 1000)
		counted("wirefence_read_bytes_total", "from", "client", 75, 50_000)
		counted("wirefence_read_bytes_total", "from", "server", 30_000, 200_000)
		timed := func(metric string, labels map[string]string) func() int {
			was := w.metric(t, metric, labels)
			return func() int { return w.metric(t, metric, labels) - was }
		}
		groups, checks := timed("wirefence_fenced_group_seconds", nil), timed("wirefence_fence_wait_seconds", map[string]string{"kind": "check"})
		c := w.connect(t)
		c.Must("select 1 /*wirefence.token='orders=34'*/")
		c.Must("begin", "/*wirefence.token='orders=34'*/ select 1", "rollback")
		if groups() != 1 || checks() != 1 {
			t.Errorf("%d groups and %d checks were timed, not the first of each", groups(), checks())
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

// Refusals of rows that judge are counted, told and logged by class, however many rows there are.
func TestRefusalsOfRowsAreCountedByClass(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.Exec(t, `CREATE TABLE public.work (id bigint PRIMARY KEY, claim bigint, running boolean);
			INSERT INTO public.work VALUES (71, 7100, true), (72, 7200, false);
			CREATE TABLE public.results (job_id bigint);
			SELECT wirefence.declare_rows('work', 'public.work', '{id}', 'claim', 'running'), wirefence.protect('public.results', 'work({job_id})')`)
		for _, mode := range []proxy.Mode{proxy.Enforce, proxy.Shadow} {
			var seen refusals
			var log stack.Log
			own := w.own(t, proxy.Options{Mode: mode, Refusals: &seen, Logger: log.Logger(), ResourceLabel: func(r fence.Resource) string { return string(r) }})
			c := own.connect(t)
			for _, try := range []struct{ fence, sql, state, label string }{
				{"work(71)=7101", "select 1", "WF001", "work()"},
				{"work(72)=7200", "select 1", "WF001", "work()"},
				{"work(73)=7300", "select 1", "WF001", "work()"},
				{"work(71)=7100", "insert into results values (72)", "WF002", "work()"},
				{"none(71)=7100", "select 1", "WF008", ""}, // any client can name another class
				{"work(71)=7100", "start transaction isolation level serializable read only; select 1", "WF006", "work()"},
			} {
				enforced := mode == proxy.Enforce || try.state == "WF002" // a guard refuses by itself
				if !enforced && try.state == "WF006" {
					continue // of a transaction, which a check in shadow mode is not in
				}
				labels := map[string]string{"resource": try.label, "sqlstate": try.state, "shadow": map[bool]string{true: "false", false: "true"}[enforced]}
				was, want := own.metric(t, "wirefence_resource_refusals_total", labels), try.state
				if !enforced {
					want = ""
				}
				stack.WantState(t, c.Simple("/*wirefence.token='"+try.fence+"'*/ "+try.sql), want, string(mode), try.fence, try.sql)
				_ = c.Simple("rollback")
				if is := own.metric(t, "wirefence_resource_refusals_total", labels); is != was+1 {
					t.Errorf("%s, %s, %s: %d refusals became %d", mode, try.fence, try.sql, was, is)
				}
				for _, r := range seen.take() {
					if v := r.Verdict(); !strings.HasSuffix(string(v.Resource), "()") || v.Token != 0 || v.CurrentToken != 0 {
						t.Errorf("%s, %s, %s: the verdict is %+v", mode, try.fence, try.sql, v)
					}
				}
			}
			log.Await(t, "resource=work()")
			if text := log.String(); strings.Contains(text, "work(7") {
				t.Errorf("logged %s", text)
			}
			if got := labelsOf(t, own.metrics, "wirefence_resource_refusals_total", "resource"); !slices.Equal(got, []string{"", "work()"}) {
				t.Errorf("%s: counted for %q", mode, got)
			}
		}
	})
}

// labelsOf lists the values of a metric's label.
func labelsOf(t *testing.T, registry *prometheus.Registry, metric, label string) (values []string) {
	t.Helper()
	for _, m := range series(t, registry, metric) {
		for _, l := range m.Label {
			if l.GetName() == label {
				values = append(values, l.GetValue())
			}
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// series are those of a metric.
func series(t *testing.T, registry *prometheus.Registry, metric string) (all []*dto.Metric) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == metric {
			all = append(all, f.Metric...)
		}
	}
	return all
}

// refusals collects what was refused, or would have been.
type refusals struct {
	mu  sync.Mutex
	all []proxy.Refusal
}

func (r *refusals) Refused(refusal proxy.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, refusal)
}

func (r *refusals) take() []proxy.Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.all = nil }()
	return r.all
}

// traces lists the traceparents of the refusals since the last call.
func (r *refusals) traces() (traces []string) {
	for _, refusal := range r.take() {
		traces = append(traces, refusal.TraceParent)
	}
	return traces
}

// A refusal has the trace of the refused statement.
func TestRefusalsHaveTheTraceOfTheirStatement(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		trace := func(n int) string {
			return fmt.Sprintf("00-4bf92f3577b34da6a3ce929d0e0e%04x-00f067aa0ba9%04x-01", n, n)
		}
		note := func(n int) string { return "/*action='pay',traceparent='" + trace(n) + "'*/" }
		for _, mode := range []proxy.Mode{proxy.Enforce, proxy.Shadow} {
			var seen refusals
			var log stack.Log
			own := w.own(t, proxy.Options{Mode: mode, UnfencedWrites: proxy.Reject, Refusals: &seen, Logger: log.Logger()})
			wants := func(name string, want ...string) {
				t.Helper()
				if got := seen.traces(); !slices.Equal(got, want) {
					t.Errorf("%s, %s: traces %q, want %q", mode, name, got, want)
				}
			}
			client := own.connect(t)
			_ = client.Simple(insert + behindStale + note(1))
			wants("a check of a simple query", trace(1))
			_ = client.Simple(insert + behindStale)
			wants("none", "")
			_ = client.Simple(insert + note(2))
			wants("no fence", trace(2))
			_ = client.Simple("prepare p as select 1" + behindStale + note(3))
			wants("a refusal of the proxy's own", trace(3))
			_ = client.Extended(insert + behindStale + note(4))
			wants("an extended query", trace(4))
			client.Exchange(2, &pgproto3.Query{String: insert + behindStale + note(5)}, &pgproto3.Query{String: insert + behindStale + note(6)})
			wants("a pipeline", trace(5), trace(6))
			other := fmt.Sprintf("other:%s", mode)
			stack.MustExec(t, w.Admin, "select wirefence.seal($1, 33, 'holder')", other)
			client.Exchange(1, &pgproto3.Parse{Name: "named", Query: insert + "/*wirefence.token='" + other + "=33'*/" + note(7)}, &pgproto3.Sync{})
			stack.MustExec(t, w.Admin, "select wirefence.seal($1, 34, 'holder')", other)
			wants("a prepared statement that is current")
			for range 2 {
				client.Exchange(1, &pgproto3.Bind{PreparedStatement: "named"}, &pgproto3.Execute{}, &pgproto3.Sync{})
				wants("a prepared statement", trace(7))
			}
			log.Await(t, "trace_id=4bf92f3577b34da6a3ce929d0e0e0001 span_id=00f067aa0ba90001")
			if text := log.String(); strings.Contains(text, "traceparent") {
				t.Errorf("logged %s", text)
			}
			if got := exemplar(t, own.metrics, "wirefence_refusals_total"); got != "4bf92f3577b34da6a3ce929d0e0e0007" {
				t.Errorf("%s: the last refusal that is counted is of the trace %q", mode, got)
			}
		}
	})
}

// exemplar is the trace of the latest exemplar of a metric.
func exemplar(t *testing.T, registry *prometheus.Registry, metric string) (traceID string) {
	t.Helper()
	var at time.Time
	for _, m := range series(t, registry, metric) {
		if e := m.GetCounter().GetExemplar(); e != nil && e.GetTimestamp().AsTime().After(at) {
			at, traceID = e.GetTimestamp().AsTime(), e.GetLabel()[0].GetValue()
		}
	}
	return traceID
}
