package main

import (
	"slices"
	"strings"
	"testing"
)

func TestOtherWorkIsSeen(t *testing.T) {
	earlier, err := parseJiffies("cpu  100 0 50 800 20 5 5 20 0 0")
	if err != nil || earlier != (jiffies{working: 160, stolen: 20, all: 1000}) {
		t.Fatalf("got %+v, %v", earlier, err)
	}
	later, err := parseJiffies("cpu  150 0 50 840 20 5 5 30 0 0")
	if err != nil {
		t.Fatal(err)
	}
	if got := later.fraction(earlier, jiffies.used); got != 0.6 {
		t.Errorf("%v of the time was used", got)
	}
	if got := earlier.fraction(earlier, jiffies.used); got != 0 {
		t.Errorf("in no time %v was used", got)
	}
	if _, err := parseJiffies("cpu0 1 2"); err == nil {
		t.Error("another line is accepted")
	}
	if _, err := readJiffies(); err != nil {
		t.Error(err)
	}
}

// Both builds do what goes through the proxy, in turn, and nothing else.
func TestBuildsAreCompared(t *testing.T) {
	all := groups(beside(workloads), []int{16}, func(string) bool { return true })
	b := &book{flags: flags{compare: "HEAD~1", rounds: 1}}
	for _, g := range all {
		for i, by := range g.workload.ways {
			if base := i%2 == 0; base != strings.HasPrefix(by.name, viaBase+", ") || base != slices.Contains([]target{baseProxy, encryptedBase}, by.target) {
				t.Errorf("%s: way %d is %+v", g, i, by)
			}
			b.results.add(g, by, sample{tps: 100 + 10*float64(i%2), p50: 10, cpu: 50, instructions: 1000, busy: g.workload.writes})
		}
	}
	text := b.comparison()
	for _, want := range []string{
		"| select | simple | 16 | unfenced | 1.10 | 1.00 | 1.00 | 1.00 |",
		"| insert, TLS to the server | prepared | 16 | fenced by comment † | 1.10 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the comparison has no %q:\n%s", want, text)
		}
	}
}
