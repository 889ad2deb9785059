package main

import (
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/bench/figures"
)

func TestLeasesAreReportedAsRatios(t *testing.T) {
	b := &book{leases: &figures.Leases{
		Ways: []figures.Way{
			{Name: "bare", Rates: []float64{1000, 2000}},
			{Name: "lock client", Rates: []float64{900, 1600}, Handoffs: []time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond}},
			{Name: "redislock", Rates: []float64{900, 800}},
			{Name: "redsync", Rates: []float64{1, 1}},
			{Name: "rueidislock", Rates: []float64{1800, 1600}},
		},
		Renewals: []figures.Renewals{{
			Name: "lock client", Leases: 100, Every: 5 * time.Second, During: 10 * time.Second,
			CPU: time.Second, RedisCPU: 500 * time.Millisecond, Commands: 200, Bytes: 204800, Lost: 1,
		}},
	}}
	text := b.markdown()
	for _, want := range []string{
		"| acquire and release on Redis: rate against the bare scripts | ≥ 0.8 | 0.85 (0.80–0.90) | reached |",
		"| acquire and release on Redis: rate against other libraries | ≥ 1 | 0.75 (0.50–1.00): rueidislock | **falls short** in 1 of 2 |",
		"| bare | 1500 (1000–2000) |  |  |  |  |",
		"| lock client | 1250 (900–1600) | 0.85 (0.80–0.90) | 2.00 | 3.00 | 3.00 |",
		"| lock client | 20 | 10 % | 5 % | 2.0 | 1 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}
