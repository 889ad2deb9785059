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

func TestPgbenchOutput(t *testing.T) {
	const text = "number of transactions actually processed: 1000\nnumber of failed transactions: %s (0.000%%)\naverage connection time = 1.500 ms\n"
	transactions, connecting, err := parseResult(strings.ReplaceAll(text, "%s", "0"))
	if err != nil || transactions != 1000 || connecting != 1.5 {
		t.Errorf("got %v, %v, %v", transactions, connecting, err)
	}
	if _, _, err := parseResult(strings.ReplaceAll(text, "%s", "3")); err == nil {
		t.Error("failed transactions are accepted")
	}
	line, ok := parseLogged("0 199 2241 0 1175850568 995598")
	if !ok || line.latency != 2241*time.Microsecond || !line.ended.Equal(time.Unix(1175850568, 995598000)) {
		t.Errorf("got %v, %v", line, ok)
	}
	if line, _ := parseLogged("0 199 2241 0 1175850568 995598 241"); line.latency != 2*time.Millisecond {
		t.Errorf("the time behind the schedule counts: %v", line.latency)
	}
}

// What ends in a run's first third doesn't count.
func TestRatesAreTakenBehindTheWarmUp(t *testing.T) {
	began := time.Unix(1175850568, 0)
	all := []transaction{{5, began.Add(3 * time.Second)}, {9, began}, {7, began.Add(time.Second)}, {3, began.Add(2 * time.Second)}}
	rate, latencies, err := steady(all)
	if err != nil || rate != 1 || !slices.Equal(latencies, []time.Duration{5, 3}) {
		t.Errorf("got %v, %v, %v", rate, latencies, err)
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
	for p, want := range map[float64]time.Duration{50: 50, 99: 99, 100: 100, 0: 1} {
		if got := percentile(all, p); got != want {
			t.Errorf("p%v is %d, want %d", p, got, want)
		}
	}
}

func TestRatiosAreTakenInEachRound(t *testing.T) {
	b := &book{}
	r := row{"insert", "simple", 16, byComment}
	other := r
	other.way = viaProxy
	for i, rate := range []float64{10, 300, 50} {
		b.add(r, sample{tps: rate})
		b.add(other, sample{tps: []float64{20, 300, 200}[i]})
	}
	if got := b.against(r, viaProxy, tps, false); got != (spread{0.5, 0.25, 1}) {
		t.Errorf("got %+v", got)
	}
	if got := b.against(r, viaProxy, tps, true); got != (spread{-10, -150, 0}) {
		t.Errorf("got %+v", got)
	}
	if got := spreadOf([]float64{4, 1, 3, 2}); got != (spread{2.5, 1, 4}) {
		t.Errorf("got %+v", got)
	}
}

func TestGoalsAreJudged(t *testing.T) {
	b := &book{flags: flags{rounds: 1, seconds: 1}}
	for way, s := range map[string]sample{
		direct: {tps: 200}, viaBouncer: {tps: 100, cpu: 10}, viaProxy: {tps: 100, cpu: 16}, byComment: {tps: 97}, byVariable: {tps: 92},
	} {
		b.add(row{"select", "prepared", 16, way}, s)
	}
	for i, c := range crowds {
		b.add(row{work: "takeover", way: c.name}, sample{p99: float64(99 + i), worst: 300, beyond: 5})
	}
	b.readCore("BenchmarkUnfenced/read/simple-2   1000 612.5 ns/op  158.38 MB/s  0 B/op  0 allocs/op\nBenchmarkFenced/simple 10 7 ns/op 24 B/op 2 allocs/op\nPASS\n")
	text := b.page()
	for _, want := range []string{
		"| a takeover | the next holder waits 99–100 ms for busy sessions (p99), and 300 ms at worst for a frozen proxy with idle ones |",
		"The project misses 4 of 8 goals.",
		"| fenced select: rate against unfenced through the proxy | ≥ 0.97 | 0.92 | select/prepared/16/proxy, fenced by session variable | **falls short** in 1 of 2 |",
		"| unfenced select, prepared, 16 clients: rate against PgBouncer | ≥ 1 | 1 |  | reached |",
		"| … CPU against PgBouncer | ≤ 1.1 | 1.60 |  | **falls short** |",
		"| takeover against busy sessions: p99, ms | ≤ 100 | 100 | takeover/64 busy sessions | reached |",
		"| allocations per exchange in the protocol core | ≤ 0 | 2 | core/Fenced/simple | **falls short** in 1 of 2 |",
		"| **select, prepared, clients: 16** |",
		"| proxy, unfenced | 100 |  |  | 16 | 0.50 | 1 |  |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(text, "## Guards") {
		t.Error("the page has a table of what was not measured")
	}
	if t.Failed() {
		t.Log(text)
	}
}

// A goal speaks of ways that are measured: one of another name would never be judged.
func TestGoalsSpeakOfWhatIsMeasured(t *testing.T) {
	for _, g := range goals {
		at := slices.IndexFunc(workloads, func(w workload) bool { return w.name == g.work })
		if at < 0 {
			continue // no run of pgbench
		}
		for _, name := range append(slices.Clone(g.ways), g.against) {
			if !slices.ContainsFunc(workloads[at].ways, func(w way) bool { return w.name == name }) {
				t.Errorf("%s: no %q in %s", g.text, name, g.work)
			}
		}
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
	all := runs(workloads, func(key string) bool { return strings.HasPrefix(key, "select/prepared/16/p") })
	if len(all) != 1 || len(all[0].ways) != 3 || len(workloads[1].ways) != 5 {
		t.Errorf("got %+v", all)
	}
}

// Both builds do what goes through the proxy, in turn, and nothing else.
func TestBuildsAreCompared(t *testing.T) {
	b := &book{flags: flags{compare: "/tmp/base", rounds: 1}}
	for _, r := range runs(beside(workloads), func(string) bool { return true }) {
		for i, by := range r.ways {
			if other := i%2 == 0; other != strings.HasPrefix(by.name, "base, ") || other != slices.Contains([]target{base, baseTLS}, by.target) {
				t.Errorf("%s: way %d is %+v", r.row, i, by)
			}
			b.add(r.of(by), sample{tps: 100 + 10*float64(i%2), p50: 10, cpu: 50})
		}
	}
	if text, want := b.comparison(), "| select/simple/16/proxy, unfenced | 1.10 | 1 | 1 |"; !strings.Contains(text, want) {
		t.Errorf("the comparison has no %q:\n%s", want, text)
	}
}
