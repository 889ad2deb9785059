package main

import (
	"io"
	"net"
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
`
	s, err := parseResult([]byte(strings.ReplaceAll(text, "%s", "0")))
	if err != nil || s.transactions != 1000 {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, err := parseResult([]byte(strings.ReplaceAll(text, "%s", "3"))); err == nil {
		t.Error("failed transactions are accepted")
	}
	line, ok := parseLogged([]byte("0 199 2241 0 1175850568 995598"))
	if !ok || line.latency != 2241*time.Microsecond || !line.ended.Equal(time.Unix(1175850568, 995598000)) {
		t.Errorf("got %v, %v", line, ok)
	}
}

// What ends in a run's first third doesn't count.
func TestRatesAreTakenBehindTheWarmUp(t *testing.T) {
	began := time.Unix(1175850568, 0)
	all := []transaction{{5, began.Add(3 * time.Second)}, {9, began}, {7, began.Add(time.Second)}, {3, began.Add(2 * time.Second)}}
	tps, latencies, err := steady(all)
	if err != nil || tps != 1 || !slices.Equal(latencies, []time.Duration{3, 5}) {
		t.Errorf("got %v, %v, %v", tps, latencies, err)
	}
	if _, _, err := steady(all[1:2]); err == nil {
		t.Error("a single transaction is accepted")
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
	b := &book{trips: map[string]trips{byComment: {20, 20}, byVariable: {20, 21}}}
	g := group{workloads[1], "prepared", 16}
	for i, s := range []sample{{tps: 200}, {tps: 100, cpu: 10}, {tps: 100, cpu: 16}, {tps: 97}, {tps: 92}} {
		b.results.add(g, g.workload.ways[i], s)
	}
	g = isolatedGroup("insert", "simple")
	for i, p50 := range []time.Duration{80, 100, 110, 111} {
		b.results.add(g, isolatedWays[i], sample{p50: p50 * time.Microsecond})
	}
	b.takeovers = &takeovers{
		busy:   map[crowd][]time.Duration{crowds[0]: {time.Millisecond, 100 * time.Millisecond}, crowds[1]: {101 * time.Millisecond}, crowds[2]: {100 * time.Millisecond}},
		beside: []time.Duration{time.Millisecond},
		frozen: []time.Duration{590 * time.Millisecond}, open: []time.Duration{preemptAfter + 90*time.Millisecond},
	}
	b.core = []coreResult{{"a", 1, 0}, {"b", 1, 2}}
	b.bounds = map[string]map[string]int64{states[0].name: {boundKinds[0].name: 1 << 10, boundKinds[1].name: 2 << 10}}
	text := b.markdown()
	for _, want := range []string{
		"| the proxy, instead of a direct connection | 0.50 of that rate for selects |",
		"| a fence, in a busy session | 0.92–0.97 of the proxy's rate without one for selects |",
		"| a fence, on a statement after a pause | 1.10–1.11 times the proxy's latency without one (p50), with 1.00–1.05 round trips to the server |",
		"| a takeover | the next holder waits 0.10 s for busy sessions (p99), and 0.59 s at worst for a frozen proxy with idle ones |",
		"| fenced select: tps against unfenced through the proxy | ≥ 0.97 | 0.92: prepared, 16 clients, proxy, fenced by session variable | **falls short** in 1 of 2 |",
		"| isolated fenced statement: p50 against unfenced through the proxy | ≤ 1.1 | 1.11: insert, simple, 8 clients, proxy, fenced by session variable | **falls short** in 1 of 2 |",
		"| isolated fenced statement: round trips between proxy and server | ≤ 1 | 1.05: proxy, fenced by session variable | **falls short** in 1 of 2 |",
		"| unfenced select, prepared: tps against PgBouncer | ≥ 1 | 1.00: prepared, 16 clients, proxy, unfenced | reached |",
		"| unfenced select, prepared: CPU time per query against PgBouncer | ≤ 1 | 1.60: prepared, 16 clients, proxy, unfenced | **falls short** |",
		"| takeover against busy sessions: p99, s | ≤ 0.1 | 0.10: 64 busy sessions | **falls short** in 1 of 3 |",
		"idle sessions: worst, s | ≤ 0.6 | 0.59 | reached |",
		"beyond preempt_after, s | ≤ 0.1 | 0.09 | reached |",
		"| allocations of the protocol core per exchange | ≤ 0 | 2.00: b | **falls short** in 1 of 2 |",
		"### select, prepared protocol",
		"| insert | simple | proxy, fenced by comment | 0.11 | 1.10 | 0.00 | 0.00 | 1.00 |",
		"| 64 busy sessions | 1 | 101.00 |",
		"| asked for 100 MB, which the client doesn't read | 50 | 1 | 2 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	summary := b.summary()
	for _, want := range []string{"misses 6 of 9 goals", "**falls short**", "## Side by side", "| 64 busy sessions | 1 | 101.00 |"} {
		if !strings.Contains(summary, want) {
			t.Errorf("the summary has no %q", want)
		}
	}
	for _, other := range []string{"| reached |", "### select, prepared protocol", "## Isolated statements", "## Protocol core"} {
		if strings.Contains(summary, other) {
			t.Errorf("the summary has %q", other)
		}
	}
	if t.Failed() {
		t.Log(text, summary)
	}
}

// Round trips are counted where a request follows an answer: neither a second part of
// a request nor one of an answer is one.
func TestRoundTripsAreCounted(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()
	c, err := startCounter(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	conn, err := net.Dial("tcp", c.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 4 {
		if _, err := conn.Write([]byte("request")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, len("request"))); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.trips.Load(); got != 3 { // the first follows no answer
		t.Errorf("%d round trips", got)
	}
}

func TestOnlyLeavesOut(t *testing.T) {
	every := slices.Concat(workloads, guardWorkloads(), rowWorkloads())
	all := groups(every, []int{1, 16}, func(key string) bool { return strings.HasPrefix(key, "select/prepared/16/p") })
	if len(all) != 1 || len(all[0].workload.ways) != 3 || len(workloads[1].ways) != 5 {
		t.Errorf("got %+v", all)
	}
	ofGuards := func(key string) bool { return strings.HasPrefix(key, "guards") }
	encrypted := 3 // in one protocol, as what is done under claims
	if all := groups(every, []int{1}, func(key string) bool { return !ofGuards(key) }); len(all) != encrypted+(len(workloads)-encrypted)*len(protocols)+len(rowWorkloads()) {
		t.Errorf("got %d groups", len(all))
	}
	// Guards have clients and a protocol of their own.
	if all := groups(every, []int{1, 64}, ofGuards); len(all) != len(guardWorkloads()) {
		t.Errorf("got %d groups of guards", len(all))
	}
}

func TestCoreBenchmarksAreRead(t *testing.T) {
	got := parseCore("BenchmarkUnfenced/read/simple-2   1000 612.5 ns/op  158.38 MB/s  0 B/op  0 allocs/op\nBenchmarkFenced/simple 10 7 ns/op 24 B/op 2 allocs/op\nPASS\n")
	want := []coreResult{{"Unfenced/read/simple", 612.5, 0}, {"Fenced/simple", 7, 2}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestRowsOfACopy(t *testing.T) {
	text, err := io.ReadAll(&rows{left: 1 << 20})
	if err != nil || len(text) != 1<<20 || strings.Count(string(text), "\n") != 1024 {
		t.Errorf("%d bytes in %d lines, %v", len(text), strings.Count(string(text), "\n"), err)
	}
}
