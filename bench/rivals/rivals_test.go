package main

import (
	"testing"
	"time"
)

// Every way is measured once, shortly: it locks, hands over and renews.
func TestEveryWayIsMeasured(t *testing.T) {
	results, err := measure(t.Context(), size{rounds: 1, during: 50 * time.Millisecond, handoffs: 2, leases: 50, renew: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range results.Ways {
		if len(w.Rates) != 1 || w.Rates[0] <= 0 {
			t.Errorf("%s: rates %v", w.Name, w.Rates)
		}
		if ways[i].waits && len(w.Handoffs) != 2 {
			t.Errorf("%s: handoffs %v", w.Name, w.Handoffs)
		}
	}
	if len(results.Renewals) != 2 {
		t.Fatalf("renewals %+v", results.Renewals)
	}
	for _, r := range results.Renewals {
		if r.Lost != 0 || r.Commands < int64(r.Leases) || r.CPU <= 0 || r.RedisCPU < 0 {
			t.Errorf("%+v", r)
		}
	}
}
