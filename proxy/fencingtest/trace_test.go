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

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

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
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var at time.Time
	for _, f := range families {
		if f.GetName() != metric {
			continue
		}
		for _, m := range f.GetMetric() {
			if e := m.GetCounter().GetExemplar(); e != nil && e.GetTimestamp().AsTime().After(at) {
				at, traceID = e.GetTimestamp().AsTime(), e.GetLabel()[0].GetValue()
			}
		}
	}
	return traceID
}
