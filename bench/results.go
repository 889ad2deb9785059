package main

import (
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

func p50(s sample) time.Duration { return s.p50 }
func p95(s sample) time.Duration { return s.p95 }
func p99(s sample) time.Duration { return s.p99 }

// nanoseconds makes a duration of a sample one of its figures.
func nanoseconds(of func(sample) time.Duration) func(sample) float64 {
	return func(s sample) float64 { return float64(of(s)) }
}

func instructionsOf(s sample) float64 { return s.instructions }

// busy says whether a sample was taken while the machine was.
func (res *result) busy() bool {
	return slices.ContainsFunc(res.samples, func(s sample) bool { return s.busy })
}

func (res *result) spread(of func(sample) float64) spread {
	var values []float64
	for _, s := range res.samples {
		values = append(values, of(s))
	}
	return spreadOf(values)
}

func (res *result) median(of func(sample) time.Duration) time.Duration {
	return time.Duration(res.spread(nanoseconds(of)).median)
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

func short(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func (s spread) String() string {
	if s.low == s.high {
		return fmt.Sprintf("%.2f", s.median)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.median, s.low, s.high)
}
