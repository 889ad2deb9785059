package main

import (
	"fmt"
	"slices"
	"strings"
)

// outcome is what one case of a goal came to.
type outcome struct {
	name string
	got  spread
}

// verdict is a goal and what was reached.
type verdict struct {
	goal  string
	want  string
	cases []outcome
	worst outcome
	short int // how many cases fall short
}

func (v verdict) String() string {
	switch {
	case v.short == 0:
		return "reached"
	case len(v.cases) == 1:
		return "**falls short**"
	}
	return fmt.Sprintf("**falls short** in %d of %d", v.short, len(v.cases))
}

// reached is the worst case.
func (v verdict) reached() string {
	if v.worst.name == "" {
		return v.worst.got.String()
	}
	return v.worst.got.String() + ": " + v.worst.name
}

func atLeast(goal string, want float64, cases ...outcome) verdict {
	return judged(goal, "≥ "+short(want), cases, func(x float64) bool { return x >= want }, func(x, y float64) bool { return x < y })
}

func atMost(goal string, want float64, cases ...outcome) verdict {
	return judged(goal, "≤ "+short(want), cases, func(x float64) bool { return x <= want }, func(x, y float64) bool { return x > y })
}

// judged compares medians, of which there must be one.
func judged(goal, want string, cases []outcome, reached func(float64) bool, worse func(x, y float64) bool) verdict {
	v := verdict{goal: goal, want: want, cases: cases}
	for i, c := range cases {
		if i == 0 || worse(c.got.median, v.worst.got.median) {
			v.worst = c
		}
		if !reached(c.got.median) {
			v.short++
		}
	}
	return v
}

// single is a figure of which there is one in a run.
func single(x float64) outcome { return outcome{got: spread{x, x, x}} }

// goalClients are the numbers of clients that the goals speak of.
var goalClients = []int{16, 64}

// against compares ways of a workload with another one, in every protocol and with
// each of the numbers of clients. What wasn't measured is left out.
func (b *book) against(workload string, clients []int, ways []string, other string, of func(sample) float64) (all []outcome) {
	for _, n := range clients {
		for _, protocol := range protocols {
			for _, way := range ways {
				x, y := b.results.of(workload, protocol, n, way), b.results.of(workload, protocol, n, other)
				if x != nil && y != nil {
					all = append(all, outcome{fmt.Sprintf("%s, %d clients, %s", protocol, n, way), ratio(x, y, of)})
				}
			}
		}
	}
	return all
}

// verdicts compares what was measured with what is to be reached. Goals of which
// nothing was measured are left out.
func (b *book) verdicts() (all []verdict) {
	fenced := []string{byComment, byVariable}
	hop := func(workload string, of func(sample) float64) []outcome {
		return b.against(workload, goalClients, []string{viaProxy}, viaBouncer, of)
	}
	// The simple protocol is no part of these.
	prepared := func(all []outcome) []outcome {
		return slices.DeleteFunc(all, func(o outcome) bool { return !strings.HasPrefix(o.name, "prepared") })
	}
	for _, v := range []verdict{
		atLeast("fenced insert: tps against unfenced through the proxy", 0.97, b.against("insert", goalClients, fenced, viaProxy, tps)...),
		atLeast("fenced insert: tps against unfenced through PgBouncer", 0.95, b.against("insert", goalClients, fenced, viaBouncer, tps)...),
		atLeast("fenced insert: tps against fencing by the application, direct", 7, b.against("insert", goalClients, fenced, application, tps)...),
		atLeast("fenced select: tps against unfenced through the proxy", 0.97, b.against("select", goalClients, fenced, viaProxy, tps)...),
		atMost("isolated fenced statement: p50 against unfenced through the proxy", 1.1, b.isolatedRatios(fenced)...),
		atMost("isolated fenced statement: round trips between proxy and server", 1, b.isolatedTrips(fenced)...),
		atLeast("unfenced select, prepared: tps against PgBouncer", 1, prepared(hop("select", tps))...),
		atMost("unfenced select, prepared: CPU time per query against PgBouncer", 1, prepared(hop("select", cpu))...),
		atLeast("the same with TLS to the server: tps", 1, hop("tls-select", tps)...),
		atMost("the same with TLS to the server: CPU time", 1.1, hop("tls-select", cpu)...),
		atLeast("the same with TLS on both sides: tps", 1, hop("tls-both-select", tps)...),
		atMost("the same with TLS on both sides: CPU time", 1.1, hop("tls-both-select", cpu)...),
		atLeast("fenced insert with TLS to the server: tps against unfenced through the proxy", 0.97, b.against("tls-insert", goalClients, fenced, viaProxy, tps)...),
		atLeast("guarded insert through the proxy, both checked: tps against not guarded", 0.85, b.guardRatios()...),
	} {
		if len(v.cases) > 0 {
			all = append(all, v)
		}
	}
	all = append(all, b.firstVerdicts()...)
	all = append(all, b.rowVerdicts()...)
	all = append(all, b.takeoverVerdicts()...)
	for _, m := range []struct {
		kind, goal string
		want       float64
	}{
		{string(wirefence), "memory of an idle session, KiB", 10}, {proxyBothTLS, "memory of an idle session with TLS on both sides, KiB", 48},
	} {
		if cost := b.sessions[m.kind]; cost != nil {
			all = append(all, atMost(m.goal, m.want, single(float64(cost.idleBytes)/1024)))
		}
	}
	if x, y := b.copies[bouncerBothTLS], b.copies[proxyBothTLS]; x != nil && y != nil {
		all = append(all, atLeast("COPY of 1 GiB with TLS on both sides: rate against PgBouncer", 1,
			outcome{"in", ratios(x.in, y.in)}, outcome{"out", ratios(x.out, y.out)}))
	}
	all = append(all, b.leaseVerdicts()...)
	if len(b.core) > 0 {
		var cases []outcome
		for _, r := range b.core {
			cases = append(cases, outcome{r.name, single(float64(r.allocs)).got})
		}
		all = append(all, atMost("allocations of the protocol core per exchange", 0, cases...))
	}
	return all
}

// isolatedRatios compares latencies.
func (b *book) isolatedRatios(ways []string) (all []outcome) {
	for _, statement := range isolatedStatements {
		g := isolatedGroup(statement.name, "")
		for _, c := range b.against(g.workload.name, []int{isolatedClients}, ways, viaProxy, nanoseconds(p50)) {
			all = append(all, outcome{statement.name + ", " + c.name, c.got})
		}
	}
	return all
}

func (b *book) isolatedTrips(ways []string) (all []outcome) {
	for _, way := range ways {
		if t, ok := b.trips[way]; ok {
			all = append(all, outcome{way, single(t.each()).got})
		}
	}
	return all
}

// guardRatios compares guarded inserts where the proxy has no holds.
func (b *book) guardRatios() (all []outcome) {
	for _, way := range []string{guardedCheckedComment, guardedCheckedVariable} {
		all = append(all, b.against(guardInserts.name, goalClients, []string{way}, unguardedAs[way], tps)...)
	}
	return all
}

func (b *book) takeoverVerdicts() (all []verdict) {
	t := b.takeovers
	if t == nil {
		return nil
	}
	var busy []outcome
	for _, c := range crowds {
		if times := t.busy[c]; len(times) > 0 {
			busy = append(busy, outcome{c.String(), single(percentile(times, 99).Seconds()).got})
		}
	}
	return append(all,
		atMost("takeover against busy sessions: p99, s", 0.1, busy...),
		atMost("takeover against a frozen proxy with idle sessions: worst, s", 0.6, single(percentile(t.frozen, 100).Seconds())),
		atMost("takeover against a frozen proxy with an open transaction: worst beyond preempt_after, s", 0.1,
			single((percentile(t.open, 100)-preemptAfter).Seconds())))
}

func (b *book) leaseVerdicts() []verdict {
	l := b.leases
	if l == nil {
		return nil
	}
	against := func(other int) outcome {
		return outcome{l.Ways[other].Name, spreadOf(ratesAgainst(l, lockClient, other))}
	}
	return []verdict{
		atLeast("acquire and release on Redis: rate against the bare scripts", 0.8, outcome{"", against(bareScripts).got}),
		atLeast("acquire and release on Redis: rate against other libraries", 1, against(redislock), against(rueidislock)),
	}
}
