package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// figure names a column of a table.
type figure string

const (
	tps          figure = "transactions/s"
	p50          figure = "p50 ms"
	p99          figure = "p99 ms"
	worst        figure = "worst ms"
	cpu          figure = "CPU µs" // of the process between, per transaction
	login        figure = "login with one select, ms"
	takeovers    figure = "takeovers"
	beyond       figure = "worst beyond `preempt_after`, ms"
	trips        figure = "round trips for one statement"
	idleKiB      figure = "KiB per idle session"
	connections  figure = "idle connections to PostgreSQL"
	seconds      figure = "s"
	grown        figure = "KiB"
	growingTime  figure = "time for each byte, of that of an eighth"
	growingBytes figure = "memory for each byte, of that of an eighth"
	neighbour    figure = "a neighbour's worst ms"
	leases       figure = "acquire and release/s"
	commands     figure = "commands/s"
	nanoseconds  figure = "ns per exchange"
	allocations  figure = "allocations"
)

// sample is what one round brought.
type sample map[figure]float64

// row is one way of doing a workload, of which each round brings a sample.
type row struct {
	work, protocol string
	clients        int
	way            string
}

// setting is what is the same for all ways that are compared; -only matches it with the way behind.
func (r row) setting() string {
	if r.protocol == "" {
		return r.work
	}
	return fmt.Sprintf("%s/%s/%d", r.work, r.protocol, r.clients)
}

func (r row) String() string { return r.setting() + "/" + r.way }

// book is all that was measured.
type book struct {
	flags    flags
	when     time.Time
	busy     float64 // load average before the run
	versions string
	order    []row
	samples  map[row][]sample
}

func (b *book) add(r row, s sample) {
	if b.samples == nil {
		b.samples = map[row][]sample{}
	}
	if b.samples[r] == nil {
		b.order = append(b.order, r)
	}
	b.samples[r] = append(b.samples[r], s)
}

// of returns the rows of some workloads.
func (b *book) of(works ...string) (all []row) {
	for _, r := range b.order {
		if slices.Contains(works, r.work) {
			all = append(all, r)
		}
	}
	return all
}

// spread is a median with the extremes. One of nothing is NaN.
type spread struct{ median, low, high float64 }

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return spread{(values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1]}
}

func (s spread) none() bool { return math.IsNaN(s.median) }

func (s spread) String() string {
	median, low, high := number(s.median), number(s.low), number(s.high)
	switch {
	case s.none():
		return ""
	case low == high:
		return median
	}
	return fmt.Sprintf("%s (%s–%s)", median, low, high)
}

func number(x float64) string {
	if math.Abs(x) >= 1000 {
		return fmt.Sprintf("%.0f", x)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.2f", x), ".00")
}

func (b *book) spread(r row, f figure) spread {
	var values []float64
	for _, s := range b.samples[r] {
		if value, found := s[f]; found {
			values = append(values, value)
		}
	}
	return spreadOf(values)
}

// against compares a row with another way's round by round: what loads the machine for a
// while then hits both. It divides, or subtracts.
func (b *book) against(r row, way string, f figure, subtract bool) spread {
	other := r
	other.way = way
	var values []float64
	for i, s := range b.samples[r] {
		if i >= len(b.samples[other]) {
			break
		}
		base := b.samples[other][i][f]
		if subtract {
			values = append(values, s[f]-base)
		} else if base > 0 {
			values = append(values, s[f]/base)
		}
	}
	return spreadOf(values)
}
