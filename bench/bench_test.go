package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCPUTimeIsReadBehindAnyName(t *testing.T) {
	got, err := parseCPU([]byte("42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 7 7 20 0 9 0 100 0 0\n"))
	if err != nil || got != 2*time.Second {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := parseCPU([]byte("42 (a) S 1")); err == nil {
		t.Error("a cut status is accepted")
	}
}

func TestResidentMemory(t *testing.T) {
	got, err := parseResident([]byte("VmRSS:\t  9000 kB\nRssAnon:\t    8 kB\nRssFile:\t 1 kB\n"))
	if err != nil || got != 8<<10 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestPgbenchOutput(t *testing.T) {
	const text = `number of transactions actually processed: 1000
number of failed transactions: %s (0.000%%)
latency average = 0.100 ms
tps = 2345.678901 (without initial connection time)
`
	s, err := parseResult([]byte(strings.ReplaceAll(text, "%s", "0")))
	if err != nil || s.transactions != 1000 || s.tps != 2345.678901 {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, err := parseResult([]byte(strings.ReplaceAll(text, "%s", "3"))); err == nil {
		t.Error("failed transactions are accepted")
	}
	if got, ok := parseLatency([]byte("0 199 2241 0 1175850568 995598")); !ok || got != 2241*time.Microsecond {
		t.Errorf("got %v, %v", got, ok)
	}
}

func TestPercentiles(t *testing.T) {
	var all []time.Duration
	for i := range 100 {
		all = append(all, time.Duration(i+1))
	}
	for p, want := range map[float64]time.Duration{50: 50, 95: 95, 99: 99, 100: 100, 0: 1} {
		if got := percentile(all, p); got != want {
			t.Errorf("p%v is %d, want %d", p, got, want)
		}
	}
	if got := percentile(all[:1], 99); got != 1 {
		t.Errorf("p99 of one is %d", got)
	}
}

func TestRatiosAreTakenInEachRound(t *testing.T) {
	a := &result{samples: []sample{{tps: 10}, {tps: 300}, {tps: 50}}}
	b := &result{samples: []sample{{tps: 20}, {tps: 300}, {tps: 200}}}
	if got := ratio(a, b, tps); got != (spread{0.5, 0.25, 1}) {
		t.Errorf("got %+v", got)
	}
	if got := spreadOf([]float64{4, 1, 3, 2}); got != (spread{2.5, 1, 4}) {
		t.Errorf("got %+v", got)
	}
}

func TestGoalsAreJudged(t *testing.T) {
	var b book
	g := group{workloads[1], "prepared", 16}
	b.results.add(g, g.workload.ways[1], sample{tps: 100, cpu: 10})
	b.results.add(g, g.workload.ways[2], sample{tps: 95, cpu: 16})
	got := b.verdicts()
	if len(got) != 2 || !got[0].ok || got[1].ok {
		t.Fatalf("got %+v", got)
	}
	for _, text := range []string{"| ≥ 0.9 | 0.95 | reached |", "| ≤ 1.5 | 1.60 | **falls short** |", "### select, prepared protocol"} {
		if !strings.Contains(b.markdown(), text) {
			t.Errorf("the page has no %q", text)
		}
	}
}

func TestOnlyLeavesOut(t *testing.T) {
	all := groups([]int{1, 16}, func(key string) bool { return strings.HasPrefix(key, "select/prepared/16/p") })
	if len(all) != 1 || len(all[0].workload.ways) != 2 || len(workloads[1].ways) != 4 {
		t.Errorf("got %+v", all)
	}
	ofGuards := func(key string) bool { return strings.HasPrefix(key, "guards") }
	if all := groups([]int{1}, func(key string) bool { return !ofGuards(key) }); len(all) != len(workloads)*len(protocols) {
		t.Errorf("got %d groups", len(all))
	}
	// Guards have clients and a protocol of their own.
	if all := groups([]int{1, 64}, ofGuards); len(all) != len(guardWorkloads())+1 {
		t.Errorf("got %d groups of guards", len(all))
	}
}

func TestCoreBenchmarksAreRead(t *testing.T) {
	got := parseCore("BenchmarkUnfenced/read/simple-2   1000 612.5 ns/op  158.38 MB/s  0 B/op  0 allocs/op\nBenchmarkFenced/simple 10 7 ns/op 24 B/op 2 allocs/op\nPASS\n")
	want := []coreResult{{"Unfenced/read/simple", 612.5, 0}, {"Fenced/simple", 7, 2}}
	if !slices.Equal(got, want) || !got[0].goalIsZero() || got[1].goalIsZero() {
		t.Errorf("got %+v", got)
	}
}

func TestRowsOfACopy(t *testing.T) {
	text, err := io.ReadAll(&rows{left: 1 << 20})
	if err != nil || len(text) != 1<<20 || strings.Count(string(text), "\n") != 1024 {
		t.Errorf("%d bytes in %d lines, %v", len(text), strings.Count(string(text), "\n"), err)
	}
}
