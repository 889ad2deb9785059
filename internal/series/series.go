// Package series keeps recent values of this process's metrics, so that a page can draw them
// without a Prometheus: an hour in steps of 5 s, and a day in steps of a minute. It reads the
// metrics as a scraper does, so nothing is counted twice.
//
// It keeps at most MaxSeries series, in MaxBytes.
package series

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The steps.
const (
	Fine   = 5 * time.Second
	Coarse = time.Minute
)

// The limits.
const (
	finePoints   = int(time.Hour / Fine)
	coarsePoints = int(24 * time.Hour / Coarse)
	// MaxSeries is how many series are kept. Further ones are left out.
	MaxSeries = 32
	// MaxBytes is the memory of their points.
	MaxBytes = MaxSeries * (finePoints + coarsePoints) * 8
)

// Recorder keeps series. It is safe for concurrent use.
type Recorder struct {
	metrics prometheus.Gatherer

	mu    sync.Mutex
	rings [2]*ring
}

// New returns a recorder of metrics. Run records.
func New(metrics prometheus.Gatherer) *Recorder {
	return &Recorder{metrics: metrics, rings: [2]*ring{newRing(Fine, finePoints), newRing(Coarse, coarsePoints)}}
}

// Run records until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	tick := time.NewTicker(Fine)
	defer tick.Stop()
	for now := time.Now(); ; {
		r.Record(now)
		select {
		case now = <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Record adds a point to each series, except of metrics that can't be gathered.
func (r *Recorder) Record(now time.Time) {
	families, _ := r.metrics.Gather() // besides an error it returns the others
	all := readAll(families)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ring := range r.rings {
		ring.record(now, all)
	}
}

// Window has the last points of all series, equally many of each. The last is that of End.
type Window struct {
	Step   time.Duration
	End    time.Time // zero without points
	Series []Series
}

// Series is one series of a Window. A point is NaN where the value is unknown.
type Series struct {
	Name string
	// Label and Value distinguish series of the same name; "" for a single one.
	Label, Value string
	Unit         Unit
	Points       []float64
}

// Read returns the last points, in steps of Fine or Coarse.
func (r *Recorder) Read(step time.Duration, limit int) Window {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ring := range r.rings {
		if ring.step == step {
			return ring.read(limit)
		}
	}
	return Window{Step: step}
}

// ring has the last points of all series, in steps of the same length.
type ring struct {
	step    time.Duration
	points  int
	at      time.Time // of the last point
	taken   int       // the number of all points so far, missed ones included
	columns map[key]*column
	order   []*column
}

// column is one series of a ring. New points overwrite the oldest.
type column struct {
	key
	unit   Unit
	points []float64
	// The last reading, with which the next is compared.
	last   float64
	counts []uint64
}

func newRing(step time.Duration, points int) *ring {
	return &ring{step: step, points: points, columns: map[key]*column{}}
}

// record adds a point if it is due. Missed points, as while the machine was suspended, are
// unknown.
func (g *ring) record(now time.Time, all []*reading) {
	first, passed := g.at.IsZero(), now.Sub(g.at)
	if !first && passed < g.step-Fine/2 {
		return
	}
	if !first {
		for range min(g.points, int((passed+g.step/2)/g.step)-1) {
			g.advance()
		}
	}
	g.advance()
	g.at = now
	for _, r := range all {
		c := g.columns[r.key]
		if c == nil {
			if c = g.add(r); c == nil {
				continue
			}
		}
		c.points[(g.taken-1)%g.points] = c.point(r, first, passed.Seconds())
		c.last, c.counts = r.value, r.counts
	}
}

// advance adds an unknown point.
func (g *ring) advance() {
	for _, c := range g.order {
		c.points[g.taken%g.points] = math.NaN()
	}
	g.taken++
}

func (g *ring) add(r *reading) *column {
	if len(g.order) == MaxSeries {
		return nil
	}
	c := &column{key: r.key, unit: r.unit, points: make([]float64, g.points)}
	for i := range c.points {
		c.points[i] = math.NaN()
	}
	g.columns[r.key] = c
	g.order = append(g.order, c)
	return c
}

// point returns the point of a reading, compared with the last one. A new counter started at 0,
// except at the very first reading, whose rate is unknown.
func (c *column) point(r *reading, first bool, seconds float64) float64 {
	switch {
	case r.unit == Number:
		return r.value
	case first || seconds <= 0:
		return math.NaN()
	case r.unit == Seconds:
		return p99(r.bounds, c.counts, r.counts)
	}
	return max(0, r.value-c.last) / seconds
}

func (g *ring) read(limit int) Window {
	n := min(limit, g.taken, g.points)
	w := Window{Step: g.step, End: g.at}
	for _, c := range g.order {
		s := Series{Name: c.name, Label: c.label, Value: c.value, Unit: c.unit, Points: make([]float64, n)}
		for i := range n {
			s.Points[i] = c.points[(g.taken-n+i)%g.points]
		}
		w.Series = append(w.Series, s)
	}
	return w
}
