package stack

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric sums a counter, a gauge or a histogram's count over the series that have all the labels.
func Metric(t testing.TB, from prometheus.Gatherer, name string, labels map[string]string) (sum float64) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			matches := 0
			for _, l := range m.Label {
				if want, asked := labels[l.GetName()]; asked && want == l.GetValue() {
					matches++
				}
			}
			if matches == len(labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}
