package main

import (
	"io"
	"net"
	"slices"
	"strings"
	"testing"
)

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
