package fencingtest

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// proxyWith starts a proxy of the test's own before the database's server.
func (db *database) proxyWith(t *testing.T, o proxy.Options) (addr string) {
	t.Helper()
	o.DrainTimeout = time.Second
	return stack.Proxy(t, db.Postgres, o)
}

// counted is the database behind a proxy whose metrics the test reads.
func (db *database) counted(t *testing.T, o proxy.Options) *database {
	t.Helper()
	own := *db
	own.metrics = prometheus.NewRegistry()
	o.Registerer = own.metrics
	own.proxy = db.proxyWith(t, o)
	return &own
}

// checks is how many checks the proxy has put in.
func (db *database) checks(t *testing.T) int { return db.metric(t, "wirefence_checks_total", nil) }

// metric sums a counter, a gauge or a histogram's count over the series that have all the
// labels.
func (db *database) metric(t *testing.T, name string, labels map[string]string) (sum int) {
	t.Helper()
	families, err := db.metrics.Gather()
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
				sum += int(m.GetCounter().GetValue()+m.GetGauge().GetValue()) + int(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}
