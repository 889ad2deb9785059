package fencingtest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/proxy"
)

// proxyWith starts a proxy of the test's own before the database's server.
func (db *database) proxyWith(t *testing.T, o proxy.Options) (addr string) {
	t.Helper()
	addr, stop, err := startProxy(db.Addr(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return addr
}

// counted is a database behind a proxy whose metrics the test reads.
type counted struct {
	*database
	metrics *prometheus.Registry
}

func (db *database) counted(t *testing.T, o proxy.Options) *counted {
	t.Helper()
	own := *db
	c := &counted{&own, prometheus.NewRegistry()}
	o.Registerer = c.metrics
	own.proxy = db.proxyWith(t, o)
	return c
}

// checks is how many checks the proxy has put in.
func (c *counted) checks(t *testing.T) int { return c.metric(t, "wirefence_checks_total", nil) }

// metric sums a counter over the series that have all the labels.
func (c *counted) metric(t *testing.T, name string, labels map[string]string) (sum int) {
	t.Helper()
	families, err := c.metrics.Gather()
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
				sum += int(m.GetCounter().GetValue())
			}
		}
	}
	return sum
}
