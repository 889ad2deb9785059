package series

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// Unit is the unit of a series.
type Unit string

// The units.
const (
	Number    Unit = "1"          // a value
	PerSecond Unit = "per_second" // the rate of a counter
	Seconds   Unit = "seconds"    // a 99th percentile
)

// source describes the series of a metric.
type source struct {
	name   string // of the series
	metric string
	unit   Unit
	// by is the label with a series for each value; "" for the sum of all.
	by string
	// where is a label that must have the value is; "" for none.
	where, is string
}

// A new series needs a line here, and in docs/reference/api.md.
var sources = []source{
	{name: "sessions", metric: "wirefence_sessions", unit: Number},
	{name: "logins", metric: "wirefence_logins_total", unit: PerSecond},
	{name: "rejected_connections", metric: "wirefence_rejected_connections_total", unit: PerSecond},
	{name: "checks", metric: "wirefence_checks_total", unit: PerSecond},
	{name: "groups", metric: "wirefence_groups_total", unit: PerSecond, by: "under"},
	{name: "refusals", metric: "wirefence_refusals_total", unit: PerSecond, by: "sqlstate", where: "shadow", is: "false"},
	{name: "let_pass", metric: "wirefence_refusals_total", unit: PerSecond, where: "shadow", is: "true"},
	{name: "handoffs", metric: "wirefence_resource_handoffs_total", unit: PerSecond},
	{name: "handoff_p99", metric: "wirefence_handoff_seconds", unit: Seconds},
}

// key names a series.
type key struct{ name, label, value string }

// reading is a metric's present value, summed over the labels that the series doesn't have.
type reading struct {
	key
	unit   Unit
	value  float64
	bounds []float64 // of a histogram's buckets, rising
	counts []uint64  // cumulative, of the buckets and then of all
}

// readAll reads the values of all sources from the gathered metrics.
func readAll(families []*dto.MetricFamily) (all []*reading) {
	for _, s := range sources {
		at := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == s.metric })
		if at < 0 {
			continue
		}
		byValue := map[string]*reading{}
		for _, m := range families[at].GetMetric() {
			if s.where != "" && label(m, s.where) != s.is {
				continue
			}
			value := ""
			if s.by != "" {
				value = label(m, s.by)
			}
			r := byValue[value]
			if r == nil {
				r = &reading{key: key{s.name, s.by, value}, unit: s.unit}
				byValue[value] = r
				all = append(all, r)
			}
			r.add(m)
		}
	}
	return all
}

func label(m *dto.Metric, name string) string {
	for _, pair := range m.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

func (r *reading) add(m *dto.Metric) {
	h := m.GetHistogram()
	if h == nil {
		r.value += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		return
	}
	buckets := slices.DeleteFunc(slices.Clone(h.GetBucket()), func(b *dto.Bucket) bool { return math.IsInf(b.GetUpperBound(), 1) })
	if r.counts == nil {
		r.counts = make([]uint64, len(buckets)+1)
		for _, b := range buckets {
			r.bounds = append(r.bounds, b.GetUpperBound())
		}
	}
	for i, b := range buckets {
		r.counts[i] += b.GetCumulativeCount()
	}
	r.counts[len(buckets)] += h.GetSampleCount()
}

// p99 is the 99th percentile of the observations between two counts, as histogram_quantile
// computes it: NaN without observations.
func p99(bounds []float64, before, after []uint64) float64 {
	since := func(i int) float64 {
		if i < 0 {
			return 0
		}
		n := after[i]
		if i < len(before) {
			n -= before[i]
		}
		return float64(n)
	}
	all := since(len(bounds))
	if all == 0 || len(bounds) == 0 {
		return math.NaN()
	}
	rank := 0.99 * all
	for i, bound := range bounds {
		if since(i) < rank {
			continue
		}
		lower, below := 0.0, since(i-1)
		if i > 0 {
			lower = bounds[i-1]
		}
		return lower + (bound-lower)*(rank-below)/(since(i)-below)
	}
	return bounds[len(bounds)-1] // the percentile is above the last bound
}
