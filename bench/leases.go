package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/wirefence/wirefence/bench/figures"
)

// Ways that bench/rivals measures, in its order.
const (
	bareScripts = iota
	lockClient
	redislock
	_ // redsync
	rueidislock
)

// measureLeases runs the comparison with other libraries, a module of its own.
func measureLeases(ctx context.Context, rounds, seconds int) (*figures.Leases, error) {
	cmd := exec.CommandContext(ctx, "go", "run", "-C", "bench/rivals", ".", fmt.Sprintf("-rounds=%d", rounds), fmt.Sprintf("-during=%ds", seconds))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("bench/rivals: %w", err)
	}
	results := &figures.Leases{}
	return results, json.Unmarshal(out, results)
}

// ratesAgainst are the ratios of a way's rates to those of another, round by round.
func ratesAgainst(l *figures.Leases, way, other int) (all []float64) {
	for i, rate := range l.Ways[other].Rates {
		all = append(all, l.Ways[way].Rates[i]/rate)
	}
	return all
}

// leaseTables show the libraries side by side.
func (b *book) leaseTables(p *page) {
	if b.leases == nil {
		return
	}
	p.section("## Leases on Redis",
		"Each library takes and releases one lock over and over, in one goroutine, without a seal. Of the libraries only the lock client counts tokens. A handoff is timed from a release by one client to the return of another's acquire, which has waited for 20 to 220 ms.",
		"| | acquire and release/s | of the bare scripts | handoff, p50 ms | p95 ms | worst ms |",
		"|---|---:|---:|---:|---:|---:|")
	for i, way := range b.leases.Ways {
		ratio, p50, p95, worst := "", "", "", ""
		if i != bareScripts {
			ratio = spreadOf(ratesAgainst(b.leases, i, bareScripts)).String()
		}
		if times := slices.Sorted(slices.Values(way.Handoffs)); len(times) > 0 {
			p50, p95, worst = ms(percentile(times, 50)), ms(percentile(times, 95)), ms(percentile(times, 100))
		}
		p.line("| %s | %s | %s | %s | %s | %s |", way.Name, rate(spreadOf(way.Rates)), ratio, p50, p95, worst)
	}
	p.line("")
	p.line("The cost for one process of keeping %d leases of 15 s, each renewed every %v. CPU is of a whole core; commands are those that it sends.", b.leases.Renewals[0].Leases, b.leases.Renewals[0].Every)
	p.line("")
	p.line("| | commands/s at Redis | CPU of the process | of Redis | KiB per lease | lost |")
	p.line("|---|---:|---:|---:|---:|---:|")
	for _, r := range b.leases.Renewals {
		share := func(cpu time.Duration) string { return fmt.Sprintf("%.0f %%", 100*cpu.Seconds()/r.During.Seconds()) }
		p.line("| %s | %.0f | %s | %s | %.1f | %d |", r.Name, float64(r.Commands)/r.During.Seconds(), share(r.CPU), share(r.RedisCPU),
			float64(r.Bytes)/1024/float64(r.Leases), r.Lost)
	}
}
