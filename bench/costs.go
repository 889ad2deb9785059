package main

import (
	"fmt"
	"strings"
)

// price is what a user adds, and what it costs.
type price struct{ of, is string }

// costs opens the page with what Wirefence costs a user.
func (b *book) costs(p *page) {
	all := b.prices()
	if len(all) == 0 {
		return
	}
	p.section("## What it costs",
		fmt.Sprintf("Clients, proxies and server share the cores here, so a rate is that of all of them together. A range is from the lowest to the highest case, of %d and %d clients and both protocols.", goalClients[0], goalClients[1]),
		"| with | measured |",
		"|---|---|")
	for _, c := range all {
		p.line("| %s | %s |", c.of, c.is)
	}
}

// prices leaves out what wasn't measured.
func (b *book) prices() (all []price) {
	fenced := []string{byComment, byVariable}
	add := func(of, format string, figures ...string) {
		values := make([]any, len(figures))
		for i, figure := range figures {
			if figure == "" {
				return
			}
			values[i] = figure
		}
		all = append(all, price{of, fmt.Sprintf(format, values...)})
	}
	add("the proxy, instead of PgBouncer", "%s", b.share([]string{viaProxy}, viaBouncer, "PgBouncer's rate"))
	add("the proxy, instead of a direct connection", "%s", b.share([]string{viaProxy}, direct, "that rate"))
	add("a fence, in a busy session", "%s", b.share(fenced, viaProxy, "the proxy's rate without one"))
	add("a fence, on a statement after a pause", "%s times the proxy's latency without one (p50), with %s round trips to the server", between(b.isolatedRatios(fenced)), between(b.isolatedTrips(fenced)))
	add("a fence by code of your own, instead", "%s", b.share([]string{application}, direct, "a direct connection's rate"))
	add("a guard on a table", "%s of a direct connection's rate for inserts, %s of the proxy's", b.guarded(guardedDirect),
		b.guarded(guardedVariable, guardedByComment, guardedCheckedVariable, guardedCheckedComment))
	if t := b.takeovers; t != nil {
		add("a takeover", "the next holder waits %s s for busy sessions (p99), and %s s at worst for a frozen proxy with idle ones",
			between(b.takeoverVerdicts()[0].cases), fmt.Sprintf("%.2f", percentile(t.frozen, 100).Seconds()))
	}
	plain, both, server := b.sessions[string(wirefence)], b.sessions[proxyBothTLS], b.sessions[string(postgres)]
	if plain != nil && both != nil && server != nil {
		kib := func(c *sessionCost) string { return fmt.Sprintf("%.1f", float64(c.idleBytes)/1024) }
		login := func(c *sessionCost) string { return ms(percentile(c.connect, 50)) }
		add("a session", "%s KiB when idle, %s with TLS on both sides; a login of %s ms instead of %s (p50)", kib(plain), kib(both), login(plain), login(server))
	}
	return all
}

// share compares the rates of inserts and of selects with another way's, which has a name.
func (b *book) share(ways []string, other, name string) string {
	var parts []string
	name = " of " + name
	for _, w := range []string{"insert", "select"} {
		if all := b.against(w, goalClients, ways, other, tps); len(all) > 0 {
			parts = append(parts, between(all)+name+" for "+w+"s")
			name = ""
		}
	}
	return strings.Join(parts, ", ")
}

// guarded compares inserts into a guarded table with the same into another.
func (b *book) guarded(ways ...string) string {
	var all []outcome
	for _, by := range ways {
		all = append(all, b.against(guardInserts.name, goalClients, []string{by}, unguardedAs[by], tps)...)
	}
	return between(all)
}

// between returns the lowest and the highest median.
func between(all []outcome) string {
	if len(all) == 0 {
		return ""
	}
	low, high := all[0].got.median, all[0].got.median
	for _, c := range all {
		low, high = min(low, c.got.median), max(high, c.got.median)
	}
	if from, to := fmt.Sprintf("%.2f", low), fmt.Sprintf("%.2f", high); from != to {
		return from + "–" + to
	}
	return fmt.Sprintf("%.2f", low)
}
