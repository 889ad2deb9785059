package api

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/series"
)

func TestSeriesAreTold(t *testing.T) {
	t.Parallel()
	serve(t, "postgres", nil).get(t, "/v1/series").want(200, "")
	registry := prometheus.NewRegistry()
	sessions := prometheus.NewGauge(prometheus.GaugeOpts{Name: "wirefence_sessions"})
	refusals := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "wirefence_refusals_total"}, []string{"sqlstate", "shadow"})
	registry.MustRegister(sessions, refusals)
	recorder := series.New(registry)
	w := serve(t, "postgres", func(o *Options) { o.Series = recorder })
	if empty := w.get(t, "/v1/series").want(200, ""); fmt.Sprint(empty.fields["series"]) != "[]" || empty.number("step_seconds") != 5 || empty.fields["end"] != nil {
		t.Errorf("before the first point: %s", empty.text)
	}
	now := time.Date(2026, 11, 23, 5, 0, 0, 0, time.UTC)
	for i := range 25 {
		sessions.Set(float64(i))
		refusals.WithLabelValues("WF001", "false").Add(10)
		recorder.Record(now.Add(time.Duration(i) * series.Fine))
	}
	for query, want := range map[string]string{
		"?limit=2":           "[map[name:sessions points:[23 24] unit:1] map[labels:map[sqlstate:WF001] name:refusals points:[2 2] unit:per_second]] 2026-11-23T05:02:00Z",
		"?range=24h":         "[map[name:sessions points:[0 12 24] unit:1] map[labels:map[sqlstate:WF001] name:refusals points:[<nil> 2 2] unit:per_second]] 2026-11-23T05:02:00Z",
		"?range=24h&limit=1": "[map[name:sessions points:[24] unit:1] map[labels:map[sqlstate:WF001] name:refusals points:[2] unit:per_second]] 2026-11-23T05:02:00Z",
	} {
		answer := w.get(t, "/v1/series"+query).want(200, "")
		if got := fmt.Sprint(answer.fields["series"], " ", answer.fields["end"]); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	if all := w.get(t, "/v1/series?range=1h").want(200, "").fields["series"].([]any)[0].(map[string]any)["points"].([]any); len(all) != 25 {
		t.Errorf("%d points", len(all))
	}
	for _, query := range []string{"range=2h", "limit=0", "limit=1441", "limit=x"} {
		w.get(t, "/v1/series?"+query).want(400, "invalid-request")
	}
}
