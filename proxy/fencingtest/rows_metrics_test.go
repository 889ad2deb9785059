package fencingtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

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
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != metric {
			continue
		}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == label {
					values = append(values, l.GetValue())
				}
			}
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}
