package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// result is one way of a group, with a sample of each round.
type result struct {
	group   group
	way     way
	samples []sample
}

type results struct {
	all []*result
}

// of returns the result of a way in a group, or nil.
func (r *results) of(workload, protocol string, clients int, way string) *result {
	for _, res := range r.all {
		g := res.group
		if g.workload.name == workload && g.protocol == protocol && g.clients == clients && res.way.name == way {
			return res
		}
	}
	return nil
}

func (r *results) add(g group, by way, s sample) {
	res := r.of(g.workload.name, g.protocol, g.clients, by.name)
	if res == nil {
		res = &result{group: g, way: by}
		r.all = append(r.all, res)
	}
	res.samples = append(res.samples, s)
}

// spread is a median with the extremes.
type spread struct{ median, low, high float64 }

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return spread{(values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1]}
}

func tps(s sample) float64 { return s.tps }
func cpu(s sample) float64 { return float64(s.cpu) }

func (res *result) spread(of func(sample) float64) spread {
	var values []float64
	for _, s := range res.samples {
		values = append(values, of(s))
	}
	return spreadOf(values)
}

func (res *result) median(of func(sample) time.Duration) time.Duration {
	return time.Duration(res.spread(func(s sample) float64 { return float64(of(s)) }).median)
}

// ratio compares two ways round by round: what loads the machine for a while
// then hits both.
func ratio(a, b *result, of func(sample) float64) spread {
	var values []float64
	for i := range min(len(a.samples), len(b.samples)) {
		if divisor := of(b.samples[i]); divisor > 0 {
			values = append(values, of(a.samples[i])/divisor)
		}
	}
	return spreadOf(values)
}

// verdict is a goal and what was reached.
type verdict struct {
	goal    string
	want    string
	reached string
	ok      bool
}

func (v verdict) String() string {
	if v.ok {
		return "reached"
	}
	return "**falls short**"
}

func atLeast(goal string, want float64, got spread) verdict {
	return verdict{goal, "≥ " + short(want), got.String(), got.median >= want}
}

func atMost(goal string, want float64, got spread) verdict {
	return verdict{goal, "≤ " + short(want), got.String(), got.median <= want}
}

func short(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func (s spread) String() string {
	if s.low == s.high {
		return fmt.Sprintf("%.2f", s.median)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.median, s.low, s.high)
}

// verdicts compares what was measured with what is to be reached. Goals of which
// nothing was measured are left out.
func (b *book) verdicts() (all []verdict) {
	const clients = 16
	judge := func(goal, workload, protocol, a, other string, of func(sample) float64, against func(string, float64, spread) verdict, want float64) {
		x, y := b.results.of(workload, protocol, clients, a), b.results.of(workload, protocol, clients, other)
		if x != nil && y != nil {
			all = append(all, against(goal, want, ratio(x, y, of)))
		}
	}
	for _, way := range []string{byComment, byVariable} {
		for _, protocol := range protocols {
			judge(fmt.Sprintf("insert, %s, 16 clients, %s: tps against unfenced and direct", protocol, way), "insert", protocol, way, direct, tps, atLeast, 0.65)
		}
	}
	for _, way := range []string{byComment, byVariable} {
		for _, protocol := range protocols {
			judge(fmt.Sprintf("insert, %s, 16 clients, %s: tps against fencing by the application", protocol, way), "insert", protocol, way, application, tps, atLeast, 5)
		}
	}
	judge("select, prepared, 16 clients, unfenced: tps against PgBouncer", "select", "prepared", viaProxy, viaBouncer, tps, atLeast, 0.9)
	judge("select, prepared, 16 clients, unfenced: CPU time per query against PgBouncer", "select", "prepared", viaProxy, viaBouncer, cpu, atMost, 1.5)
	if cost := b.sessions[wirefence]; cost != nil {
		kib := float64(cost.idleBytes) / 1024
		all = append(all, atMost("memory of an idle session, KiB", 24, spread{kib, kib, kib}))
	}
	if b.leases != nil {
		all = append(all, atLeast("acquire and release on Redis: rate against the bare scripts", 0.8, spreadOf(ratesAgainst(b.leases, lockClient))),
			atMost("handoff of a lease on Redis, from release to the next acquire: p50, ms", 10, handoff(b.leases.Ways[lockClient])))
	}
	if len(b.core) > 0 {
		worst := slices.MaxFunc(b.core, func(x, y coreResult) int { return cmp.Compare(x.mustBeZero(), y.mustBeZero()) })
		all = append(all, verdict{"allocations of the protocol core per exchange, unfenced or prepared", "0", strconv.Itoa(worst.mustBeZero()), worst.mustBeZero() == 0})
	}
	return all
}

// mustBeZero is the number of allocations where the goal is none.
func (r coreResult) mustBeZero() int {
	if r.goalIsZero() {
		return r.allocs
	}
	return 0
}
