package series

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// world has a process's metrics and a clock.
type world struct {
	*Recorder
	sessions prometheus.Gauge
	refusals *prometheus.CounterVec
	handoffs prometheus.Histogram
	now      time.Time
}

func newWorld() *world {
	w := &world{
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "wirefence_sessions"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "wirefence_refusals_total"}, []string{"sqlstate", "condition", "shadow"}),
		handoffs: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "wirefence_handoff_seconds", Buckets: []float64{0.1, 1, 10}}),
		now:      time.Date(2026, 11, 23, 5, 0, 0, 0, time.UTC),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.sessions, w.refusals, w.handoffs)
	w.Recorder = New(registry)
	return w
}

func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.Record(w.now)
}

// shown returns the last points of each series.
func (w *world) shown(step time.Duration, limit int) string {
	var b strings.Builder
	window := w.Read(step, limit)
	for _, s := range window.Series {
		fmt.Fprintf(&b, "%s%s %.3g; ", s.Name, s.Value, s.Points)
	}
	return b.String()
}

func (w *world) expect(t *testing.T, step time.Duration, limit int, want string) {
	t.Helper()
	if got := w.shown(step, limit); got != want {
		t.Errorf("in steps of %v:\n%s\nwant\n%s", step, got, want)
	}
}

func TestPointsAreRatesAndValues(t *testing.T) {
	t.Parallel()
	w := newWorld()
	if empty := w.Read(Fine, 10); !empty.End.IsZero() || len(empty.Series) > 0 {
		t.Errorf("before the first point: %v", empty)
	}
	refuse := func(state, shadow string, n float64) { w.refusals.WithLabelValues(state, "x", shadow).Add(n) }
	refuse("WF001", "false", 1000)
	w.sessions.Set(3)
	w.handoffs.Observe(5)
	w.pass(0)
	w.expect(t, Fine, 10, "sessions [3]; refusalsWF001 [NaN]; handoff_p99 [NaN]; ")
	refuse("WF001", "false", 10)
	refuse("WF001", "true", 5)
	refuse("WF002", "false", 20)
	for range 100 {
		w.handoffs.Observe(0.5)
	}
	w.sessions.Set(4)
	w.pass(Fine)
	w.expect(t, Fine, 10, "sessions [3 4]; refusalsWF001 [NaN 2]; handoff_p99 [NaN 0.991]; refusalsWF002 [NaN 4]; let_pass [NaN 1]; ")
	w.pass(Fine)
	w.expect(t, Fine, 2, "sessions [4 4]; refusalsWF001 [2 0]; handoff_p99 [0.991 NaN]; refusalsWF002 [4 0]; let_pass [1 0]; ")
	if w.Read(Coarse, 10).End != w.Read(Fine, 10).End.Add(-2*Fine) {
		t.Error("a minute is over before its time")
	}
	for range 10 {
		w.pass(Fine)
	}
	w.expect(t, Coarse, 10, "sessions [3 4]; refusalsWF001 [NaN 0.167]; handoff_p99 [NaN 0.991]; refusalsWF002 [NaN 0.333]; let_pass [NaN 0.0833]; ")
	// The machine was suspended: missed points are unknown, and the rate is that of the whole time.
	refuse("WF001", "false", 20)
	w.pass(4 * Fine)
	w.expect(t, Fine, 5, "sessions [4 NaN NaN NaN 4]; refusalsWF001 [0 NaN NaN NaN 1]; handoff_p99 [NaN NaN NaN NaN NaN]; refusalsWF002 [0 NaN NaN NaN 0]; let_pass [0 NaN NaN NaN 0]; ")
	w.pass(48 * time.Hour)
	for _, step := range []time.Duration{Fine, Coarse} {
		points := w.Read(step, math.MaxInt).Series[0].Points
		for i, p := range points {
			if math.IsNaN(p) == (i == len(points)-1) {
				t.Fatalf("after two days without a point, point %d of %d is %v", i, len(points), p)
			}
		}
	}
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	bounds := []float64{0.1, 1, 10}
	for name, c := range map[string]struct {
		before, after []uint64
		want          float64
	}{
		"none":     {[]uint64{5, 5, 5, 5}, []uint64{5, 5, 5, 5}, math.NaN()},
		"first":    {nil, []uint64{100, 100, 100, 100}, 0.099},
		"later":    {[]uint64{0, 0, 0, 0}, []uint64{0, 0, 100, 100}, 1 + 9*0.99},
		"two":      {[]uint64{1, 2, 3, 4}, []uint64{91, 102, 103, 104}, 0.1 + 0.9*(99-90)/10},
		"above":    {nil, []uint64{0, 0, 0, 1}, 10},
		"no bound": {nil, []uint64{7}, math.NaN()},
	} {
		of := bounds
		if name == "no bound" {
			of = nil
		}
		if got := p99(of, c.before, c.after); math.Abs(got-c.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// The recorder stays within its limits, however many labels there are and however long it
// records.
func TestMemoryIsBounded(t *testing.T) {
	w := newWorld()
	for i := range 100 {
		w.refusals.WithLabelValues(strconv.Itoa(i), "x", "false").Inc()
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 2 * coarsePoints {
		w.pass(Coarse)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := len(w.Read(Fine, 1).Series); n != MaxSeries {
		t.Errorf("%d series are kept", n)
	}
	points := 0
	for _, ring := range w.rings {
		for _, c := range ring.order {
			points += cap(c.points)
		}
	}
	if points*8 != MaxBytes {
		t.Errorf("points take %d bytes, %d are documented", points*8, MaxBytes)
	}
	if grown := int(after.HeapAlloc) - int(before.HeapAlloc); grown > MaxBytes+MaxBytes/2 {
		t.Errorf("it has grown by %d bytes", grown)
	}
	runtime.KeepAlive(w)
}
