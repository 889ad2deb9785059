package main

import (
	"testing"
	"time"
)

// Every library is measured once, shortly.
func TestEveryLibraryIsMeasured(t *testing.T) {
	all, err := measure(t.Context(), 1, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if len(l.Rates) != 1 || l.Rates[0] <= 0 {
			t.Errorf("%s: rates %v", l.Name, l.Rates)
		}
	}
}
