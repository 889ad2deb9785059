package main

import (
	"fmt"
	"strings"
	"time"
)

// table shows the rows of some workloads.
type table struct {
	heading, text string
	works         []string
	columns       []figure
	bases         []string // ways that the first column is compared with
}

var tables = []table{
	{"## Side by side", "An insert adds a row to a table with a primary key; a select reads a row by primary key, as `pgbench -S`. *Fenced by the application* is the usual code without a proxy: `BEGIN`, `UPDATE locks … WHERE last_token <= 34`, `INSERT`, `COMMIT`, each a round trip. Latency is of a whole transaction, CPU that of the process between client and database, per transaction.",
		[]string{"insert", "select", "select with TLS to the server"}, []figure{tps, p50, p99, cpu}, []string{direct, viaBouncer, viaProxy}},
	{"## Guards", "The same insert into a table that is guarded for one resource, and with a check of every transaction (`WIREFENCE_HOLD=0`). Direct writers carry the fence in the session variable.",
		[]string{"guards"}, []figure{tps, p50, p99}, []string{direct, byVariable, byComment}},
	{"## Rows that judge their own claims", "A worker's last transaction, which is its result and the job's update, fenced by the job's row; and one statement of 1,000 rows under the claims of 1,000 jobs, also into a table that these guard.",
		[]string{"completion", "claims"}, []figure{tps, p50, p99}, []string{viaProxy, byComment}},
	{"## Isolated statements", "8 sessions send 10 inserts a second each. Where the proxy asks whether a takeover wants its holds, as here, they last over the pauses.",
		[]string{"isolated"}, []figure{p50, p99}, []string{viaProxy}},
	{"", "A round trip is a request that follows an answer on the connection from the proxy to the server, counted by a relay in between.",
		[]string{"trips"}, []figure{trips}, []string{viaProxy}},
	{"## The beginning of a session", "An insert as the first statement of a session: its first check compiles its functions in the backend.",
		[]string{"first statement"}, []figure{p50, p99}, []string{viaProxy}},
	{"", "A login without password, with a select, since PgBouncer opens its connection to the server only then. This PgBouncer reuses none.",
		[]string{"login"}, []figure{login}, []string{direct, viaBouncer}},
	{"## Takeovers", "How long `wirefence.seal` takes while sessions have the token before. Busy sessions insert without a pause through the proxy, in one half of the takeovers with the fence in the session variable, in the other with it in a comment. A frozen proxy was stopped by SIGSTOP: with 8 sessions, or with an open transaction, where `preempt_after` is 1 s.",
		[]string{"takeover"}, []figure{takeovers, p50, p99, worst, beyond}, nil},
	{"## Sessions", fmt.Sprintf("Memory is the growth of the process, with %d idle sessions and a PgBouncer in transaction mode behind it, without the kernel's socket buffers.", idleSessions),
		[]string{"sessions"}, []figure{idleKiB, connections}, nil},
	{"## Large texts", fmt.Sprintf("A fenced session sends a large text, or asks for a large answer, while %d neighbours on the same proxy send small statements.", neighbours),
		[]string{"texts"}, []figure{seconds, grown, growingTime, growingBytes, neighbour}, nil},
	{"## Redis through the relay", "What a sidecar with a lock in Redis adds: to commands that are no lock's, by `redis-benchmark` with values of 100 bytes, and to a `SET NX` that takes the lock, which is sealed in PostgreSQL before the answer. redis-benchmark and Redis take a core each, so any program between them takes of theirs.",
		[]string{"relay"}, []figure{commands, p50, p99}, []string{direct, viaCopy}},
	{"## Leases on Redis", "Each library takes and releases one lock over and over, in one goroutine, without a seal. Of the libraries only the lock client counts tokens.",
		[]string{"leases"}, []figure{leases}, []string{"bsm/redislock", "rueidislock"}},
	{"## Protocol core", "Go benchmarks of the session's state machine with canned bytes, no sockets: one exchange consists of a client's messages up to its Query or Sync, and all answers.",
		[]string{"core"}, []figure{nanoseconds, allocations}, nil},
}

// page is the whole page of the docs.
func (b *book) page() string {
	var p strings.Builder
	fmt.Fprintf(&p, "# Benchmarks\n\nThis page is for those who want to know what Wirefence costs. `make bench` measures it and writes the page; this run was on %s.\n", b.when.UTC().Format(time.DateOnly))
	p.WriteString("\n## What it costs\n\nClients, proxies and server share the cores here, so a rate is that of all of them together. A range is from the lowest to the highest case.\n\n| with | measured |\n|---|---|\n")
	for _, c := range costs {
		if line := b.line(c); line != "" {
			p.WriteString(line + "\n")
		}
	}
	lines, missed := b.verdicts()
	fmt.Fprintf(&p, "\n## What is to be reached\n\nThe project misses %d of %d goals. A goal about several cases shows the worst.\n\n| goal | want | measured | in | |\n|---|---|---|---|---|\n%s\n", missed, len(lines), strings.Join(lines, "\n"))
	fmt.Fprintf(&p, "\n## How it was measured\n\nBy `%s`, which starts all servers itself: %s. Load average before the run: %.2f.\n", b.command(), b.versions, b.busy)
	fmt.Fprintf(&p, "\nEach figure is the median of %d rounds of %d s, with the lowest and the highest in brackets. All ways of a table run in turn, round after round; a ratio is taken in each round.\n", b.flags.rounds, b.flags.seconds)
	for _, t := range tables {
		b.table(&p, t)
	}
	return p.String()
}

// verdicts are the lines of the goals of which something was measured.
func (b *book) verdicts() (lines []string, missed int) {
	for _, g := range goals {
		cases := b.outcomes(g)
		if len(cases) == 0 {
			continue
		}
		line, short := g.verdict(cases)
		lines = append(lines, line)
		if short {
			missed++
		}
	}
	return lines, missed
}

func (b *book) command() string {
	text := fmt.Sprintf("go run ./bench -rounds %d -seconds %d", b.flags.rounds, b.flags.seconds)
	if b.flags.only != "" {
		text += fmt.Sprintf(" -only '%s'", b.flags.only)
	}
	return text
}

func (b *book) table(p *strings.Builder, t table) {
	rows := b.of(t.works...)
	if len(rows) == 0 {
		return
	}
	if t.heading != "" {
		fmt.Fprintf(p, "\n%s\n", t.heading)
	}
	fmt.Fprintf(p, "\n%s\n\n| %s |", t.text, "")
	for _, c := range t.columns {
		fmt.Fprintf(p, " %s |", c)
	}
	for _, way := range t.bases {
		fmt.Fprintf(p, " of %s |", way)
	}
	fmt.Fprintf(p, "\n|---|%s\n", strings.Repeat("---:|", len(t.columns)+len(t.bases)))
	before := ""
	for _, r := range rows {
		if r.protocol != "" && r.setting() != before {
			before = r.setting()
			fmt.Fprintf(p, "| **%s, %s, clients: %d** |%s\n", r.work, r.protocol, r.clients, strings.Repeat(" |", len(t.columns)+len(t.bases)))
		}
		fmt.Fprintf(p, "| %s |", r.way)
		for _, c := range t.columns {
			fmt.Fprintf(p, " %s |", b.spread(r, c))
		}
		for _, way := range t.bases {
			compared := ""
			if way != r.way {
				compared = b.against(r, way, t.columns[0], false).String()
			}
			fmt.Fprintf(p, " %s |", compared)
		}
		p.WriteString("\n")
	}
}

// comparison is what a change did, as text.
func (b *book) comparison() string {
	var p strings.Builder
	fmt.Fprintf(&p, "Ratios of this tree to %s, each taken in one round: median, lowest and highest of %d.\n\n", b.flags.compare, b.flags.rounds)
	p.WriteString("| | transactions/s | p50 | CPU |\n|---|---:|---:|---:|\n")
	for _, r := range b.order {
		of := string(base) + ", " + r.way
		if rate := b.against(r, of, tps, false); !rate.none() {
			fmt.Fprintf(&p, "| %s | %s | %s | %s |\n", r, rate, b.against(r, of, p50, false), b.against(r, of, cpu, false))
		}
	}
	return p.String()
}
