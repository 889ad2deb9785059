package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wirefence/wirefence/bench/figures"
)

// book is all that was measured.
type book struct {
	flags     flags
	when      time.Time
	busy      float64 // load average before the run
	versions  string
	results   results
	sessions  map[string]*sessionCost
	firsts    map[string]*firstCost
	trips     map[string]trips // by ways
	takeovers *takeovers
	copies    map[string]*copyCost
	logins    map[string]*loginCost
	streams   *streamCost
	bounds    map[string]map[string]int64
	leases    *figures.Leases
	core      []coreResult
}

// busyMark is behind the name of a way that was measured on a busy machine.
const busyMark = " †"

// busyLegend explains the mark.
func (b *book) busyLegend() string {
	marked := 0
	for _, res := range b.results.all {
		if res.busy() {
			marked++
		}
	}
	if marked == 0 {
		return "The machine did no other work in any of the runs."
	}
	return fmt.Sprintf("† marks what was measured, in one round at least, while other work had more than %.0f %% of the machine, or the host took as much away: %d of %d rows.",
		100*tolerated, marked, len(b.results.all))
}

// markdown is all that was measured.
func (b *book) markdown() string {
	var p page
	b.begin(&p, b.verdicts(), workloads, protocols)
	b.isolatedTable(&p)
	b.takeoverTable(&p)
	b.guardTables(&p)
	b.rowTables(&p)
	b.sessionTable(&p)
	b.firstTable(&p)
	b.loginTable(&p)
	b.streamTable(&p)
	b.copyTable(&p)
	b.boundTable(&p)
	b.leaseTables(&p)
	b.coreTable(&p)
	return p.String()
}

// summary is docs/reference/benchmarks.md: a table for each question that a user has, and the goals
// that are missed.
func (b *book) summary() string {
	var p page
	missed := slices.DeleteFunc(b.verdicts(), func(v verdict) bool { return v.short == 0 })
	b.begin(&p, missed, workloads[:1], []string{"prepared"})
	b.takeoverTable(&p)
	b.guardTables(&p)
	b.rowTables(&p)
	b.sessionTable(&p)
	b.leaseTables(&p)
	return p.String()
}

// begin writes what comes before the tables of single subjects.
func (b *book) begin(p *page, goals []verdict, workloads []workload, protocols []string) {
	p.line("# Benchmarks")
	p.line("")
	p.line("This page is for those who want to know what Wirefence costs. `make bench` measures it, prints all figures, and writes the most useful ones here; this run was on %s.", b.when.UTC().Format(time.DateOnly))
	b.costs(p)
	b.goals(p, goals)
	p.line("")
	p.line("## How it was measured")
	p.line("")
	p.line("By `%s`, which starts all servers itself: %s. Load average before the run: %.2f. %s", b.command(), b.versions, b.busy, b.busyLegend())
	p.line("")
	p.line("Each figure is the median of %d rounds of %d s, with the lowest and the highest in brackets. All ways of a table run in turn, round after round; a ratio is taken in each round.", b.flags.rounds, b.flags.seconds)
	p.line("")
	p.line("## Side by side")
	p.line("")
	p.line("An insert adds a row to a table with a primary key; a select reads a row by primary key, as `pgbench -S`. *Fenced by the application* is the usual code without a proxy: `BEGIN`, `UPDATE locks … WHERE last_token <= 34`, `INSERT`, `COMMIT`, each a round trip. Latency is of a whole transaction. CPU is that of the process between client and database, per transaction; so are instructions, which the kernel counts on few virtual machines.")
	for _, w := range workloads {
		for _, protocol := range protocols {
			b.table(p, w, protocol)
		}
	}
}

func (b *book) command() string {
	f := b.flags
	text := fmt.Sprintf("go run ./bench -rounds %d -seconds %d -clients %s", f.rounds, f.seconds, f.clients)
	if f.only != "" {
		text += fmt.Sprintf(" -only '%s'", f.only)
	}
	if f.binary != "" {
		text += " -binary " + filepath.Base(f.binary)
	}
	return text
}

func (b *book) goals(p *page, shown []verdict) {
	all := b.verdicts()
	if len(all) == 0 {
		return
	}
	missed := 0
	for _, v := range all {
		missed += min(v.short, 1)
	}
	p.section("## What is to be reached",
		fmt.Sprintf("The project misses %d of %d goals. A goal about several cases shows the worst.", missed, len(all)),
		"| goal | want | measured | |",
		"|---|---|---|---|")
	for _, v := range shown {
		p.line("| %s | %s | %s | %s |", v.goal, v.want, v.reached(), v)
	}
}

func (b *book) table(p *page, w workload, protocol string) {
	head := false
	last := 0
	for _, res := range b.inOrder(w, protocol) {
		if !head {
			p.section(fmt.Sprintf("### %s, %s protocol", w.caption(), protocol),
				"",
				"| clients | way | transactions/s | of direct | of PgBouncer | of proxy, unfenced | p50 ms | p95 ms | p99 ms | CPU µs | thousand instructions |",
				"|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
			head = true
		}
		clients := ""
		if res.group.clients != last {
			last = res.group.clients
			clients = fmt.Sprint(last)
		}
		name := res.way.name
		if res.busy() {
			name += busyMark
		}
		p.line("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |", clients, name, rate(res.spread(tps)), b.ratioTo(direct, res), b.ratioTo(viaBouncer, res), b.ratioTo(viaProxy, res),
			ms(res.median(p50)),
			ms(res.median(p95)),
			ms(res.median(p99)), cost(res), counted(res))
	}
}

// inOrder returns the results of a table in the order of its rows.
func (b *book) inOrder(w workload, protocol string) (all []*result) {
	seen := map[int]bool{}
	for _, first := range b.results.all {
		n := first.group.clients
		if seen[n] {
			continue
		}
		seen[n] = true
		for _, by := range w.ways {
			if res := b.results.of(w.name, protocol, n, by.name); res != nil {
				all = append(all, res)
			}
		}
	}
	return all
}

// ratioTo compares a result with another way of its group; with itself it is "".
func (b *book) ratioTo(way string, res *result) string {
	base := b.results.of(res.group.workload.name, res.group.protocol, res.group.clients, way)
	if base == nil || base == res {
		return ""
	}
	return fmt.Sprintf("%.2f", ratio(res, base, tps).median)
}

func (b *book) sessionTable(p *page) {
	if len(b.sessions) == 0 {
		return
	}
	p.section("## Sessions",
		fmt.Sprintf("Memory is the growth of the process, with %d idle sessions and a PgBouncer in transaction mode behind it, without the kernel's socket buffers. A connection is timed until the first ReadyForQuery, without password. PgBouncer uses one of its open server connections; the proxy opens one for each client.", idleSessions),
		"| | KiB per idle session | connection, p50 ms | p95 ms |",
		"|---|---:|---:|---:|")
	for _, k := range sessionKinds {
		cost, memory := b.sessions[k.name], ""
		if cost.idleBytes > 0 {
			memory = fmt.Sprintf("%.1f", float64(cost.idleBytes)/1024)
		}
		p.line("| %s | %s | %s | %s |", k.name, memory, ms(percentile(cost.connect, 50)), ms(percentile(cost.connect, 95)))
	}
}

func (b *book) loginTable(p *page) {
	if len(b.logins) == 0 {
		return
	}
	p.section("## A flood of logins",
		fmt.Sprintf("8 clients of plaintext run selects, simple protocol, while %d others log in and out, with TLS and without password, %d times a second together if they are let. Those that log in share the cores with all else. Behind both ways stands a PgBouncer in transaction mode: PostgreSQL starts a process for each login.", loginsAtOnce, loginRate),
		"| way | transactions/s | p50 ms | p99 ms | in the flood: transactions/s | p50 ms | p99 ms | logins/s |",
		"|---|---:|---:|---:|---:|---:|---:|---:|")
	for _, way := range loginWays {
		c := b.logins[way]
		calm, flooded := &result{samples: c.calm}, &result{samples: c.flooded}
		p.line("| %s | %s | %s | %s | %s | %s | %s | %s |", way,
			rate(calm.spread(tps)), ms(calm.median(p50)), ms(calm.median(p99)),
			rate(flooded.spread(tps)), ms(flooded.median(p50)), ms(flooded.median(p99)),
			rate(spreadOf(c.rate)))
	}
}

func (b *book) streamTable(p *page) {
	if b.streams == nil {
		return
	}
	p.section("## Streams of events",
		fmt.Sprintf("8 clients run selects, prepared, through a proxy that serves %d [streams of events](api.md#streaming-events) or none, while a resource is taken over every %v; each takeover is told by every stream. A stream makes the process grow by %.0f KiB at most.", openStreams, takeoverPause, float64(b.streams.streamBytes)/1024),
		"| streams | transactions/s | p50 ms | p99 ms | proxy's CPU, cores | events/s and stream |",
		"|---|---:|---:|---:|---:|---:|")
	for _, way := range []struct {
		streams int
		samples []sample
		events  []float64
	}{{0, b.streams.alone, nil}, {openStreams, b.streams.watched, b.streams.events}} {
		res, events := &result{samples: way.samples}, ""
		if way.events != nil {
			events = fmt.Sprintf("%.1f", spreadOf(way.events).median)
		}
		p.line("| %d | %s | %s | %s | %.2f | %s |", way.streams, rate(res.spread(tps)), ms(res.median(p50)),
			ms(res.median(p99)), res.median(func(s sample) time.Duration { return s.cpu }).Seconds(), events)
	}
}

func (b *book) copyTable(p *page) {
	if len(b.copies) == 0 {
		return
	}
	p.section("## COPY of 1 GiB",
		"Text lines of 1 KiB into an unlogged table and out of it again, one client. CPU and memory are those of the process between. Rates are compared with those of a direct connection, encrypted alike.",
		"| way | in, s | of direct | CPU s | out, s | of direct | CPU s | MiB |",
		"|---|---:|---:|---:|---:|---:|---:|---:|")
	var base *copyCost
	for _, way := range copyWays {
		cost := b.copies[way.name]
		in, out, cpuIn, cpuOut, memory := "", "", "", "", ""
		if way.target == postgres {
			base = cost
		} else {
			in, out = fmt.Sprintf("%.2f", ratios(base.in, cost.in).median), fmt.Sprintf("%.2f", ratios(base.out, cost.out).median)
			cpuIn, cpuOut = secondsOf(cost.cpuIn), secondsOf(cost.cpuOut)
			memory = fmt.Sprintf("%.1f", float64(cost.memory)/(1<<20))
		}
		p.line("| %s | %s | %s | %s | %s | %s | %s | %s |", way.name, secondsOf(cost.in), in, cpuIn, secondsOf(cost.out), out, cpuOut, memory)
	}
}

func (b *book) boundTable(p *page) {
	if len(b.bounds) == 0 {
		return
	}
	p.section("## Memory of a session that is stuck",
		"What one session makes the process grow by at most, in KiB, beyond an idle one, without the kernel's socket buffers.",
		"| state | sessions | plaintext | TLS on both sides |",
		"|---|---:|---:|---:|")
	for _, s := range states {
		of := b.bounds[s.name]
		p.line("| %s | %d | %.0f | %.0f |", s.name, s.sessions, float64(of[boundKinds[0].name])/1024, float64(of[boundKinds[1].name])/1024)
	}
}

// ratios compares durations round by round, as speeds: the first over the second.
func ratios(a, b []time.Duration) spread {
	var values []float64
	for i := range min(len(a), len(b)) {
		values = append(values, float64(a[i])/float64(b[i]))
	}
	return spreadOf(values)
}

func secondsOf(all []time.Duration) string {
	var values []float64
	for _, d := range all {
		values = append(values, d.Seconds())
	}
	return spreadOf(values).String()
}

func (b *book) coreTable(p *page) {
	if len(b.core) == 0 {
		return
	}
	p.section("## Protocol core",
		"Go benchmarks of the session's state machine with canned bytes, no sockets: one exchange consists of a client's messages up to its Query or Sync, and all answers. `go test -run '^$' -bench . ./proxy/internal/session` repeats them.",
		"| case | ns per exchange | allocations |",
		"|---|---:|---:|")
	for _, r := range b.core {
		p.line("| %s | %.0f | %d |", r.name, r.ns, r.allocs)
	}
}

func rate(s spread) string { return fmt.Sprintf("%.0f (%.0f–%.0f)", s.median, s.low, s.high) }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

// cost is the CPU time per transaction of the process between.
func cost(res *result) string {
	if res.way.target == postgres {
		return ""
	}
	s := res.spread(cpu)
	return fmt.Sprintf("%.1f (%.1f–%.1f)", s.median/1e3, s.low/1e3, s.high/1e3)
}

// counted is how many instructions the process between took per transaction.
func counted(res *result) string {
	s := res.spread(instructionsOf)
	switch {
	case res.way.target == postgres:
		return ""
	case s.median == 0:
		return "not counted"
	}
	return fmt.Sprintf("%.1f (%.1f–%.1f)", s.median/1e3, s.low/1e3, s.high/1e3)
}

// page collects lines.
type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// section begins a heading with its text, if it has any, and a table.
func (p *page) section(heading, text, head, rule string) {
	for _, part := range []string{heading, text} {
		if part != "" {
			p.line("\n%s", part)
		}
	}
	p.line("\n%s\n%s", head, rule)
}
