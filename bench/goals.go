package main

import (
	"fmt"
	"slices"
	"strings"
)

// goal is a figure that is to be reached in all its cases.
type goal struct {
	text     string
	most     bool // the figure may be at most want, else must be at least that
	want     float64
	figure   figure
	work     string
	only     string   // what the setting of a case has, such as prepared/16
	ways     []string // nil: all
	against  string   // the way that the others are compared with; "" compares with none
	subtract bool     // compared by difference, not as a ratio
}

var (
	bothFences = []string{byComment, byVariable}
	throughIt  = []string{viaProxy}
)

// goals are those of the project, in its order.
var goals = []goal{
	{"fenced insert: rate against unfenced through the proxy", false, 0.97, tps, "insert", "", bothFences, viaProxy, false},
	{"… against unfenced through PgBouncer", false, 0.95, tps, "insert", "", bothFences, viaBouncer, false},
	{"… against fencing by the application, direct", false, 7, tps, "insert", "", bothFences, application, false},
	{"fenced select: rate against unfenced through the proxy", false, 0.97, tps, "select", "", bothFences, viaProxy, false},
	{"… against unfenced through PgBouncer", false, 0.95, tps, "select", "", bothFences, viaBouncer, false},
	{"guarded insert, direct: rate against not guarded", false, 0.78, tps, "guards", "", []string{direct + guarded}, direct, false},
	{"guarded insert, proxy, by session variable: rate against not guarded", false, 0.85, tps, "guards", "", []string{byVariable + guarded}, byVariable, false},
	{"… by comment", false, 0.85, tps, "guards", "", []string{byComment + guarded}, byComment, false},
	{"insert, every transaction checked (`WIREFENCE_HOLD=0`), by session variable: rate against held", false, 0.85, tps, "guards", "", []string{checkVar}, byVariable, false},
	{"… by comment", false, 0.85, tps, "guards", "", []string{checkComment}, byComment, false},
	{"row-fenced completion of a job: rate against unfenced", false, 0.75, tps, "completion", "", bothFences, viaProxy, false},
	{"1,000 row fences in one transaction: ms added, which are µs for each", true, 6, p50, "claims", "", []string{byComment}, viaProxy, true},
	{"1,000 rows into a table that is guarded by them: rate against not guarded", false, 0.8, tps, "claims", "", []string{byComment + guarded}, byComment, false},
	{"isolated fenced statement: p50 against unfenced", true, 1.05, p50, "isolated", "", bothFences, viaProxy, false},
	{"… round trips to the server, against unfenced", true, 1, trips, "trips", "", bothFences, viaProxy, false},
	{"first fenced statement of a session: p50 beyond an unfenced one, ms", true, 1.5, p50, "first statement", "", bothFences, viaProxy, true},
	{"login: time against PgBouncer's with a new server connection", true, 1.3, login, "login", "", throughIt, viaBouncer, false},
	{"unfenced select, prepared, 16 clients: rate against PgBouncer", false, 1, tps, "select", "prepared/16", throughIt, viaBouncer, false},
	{"… CPU against PgBouncer", true, 1.1, cpu, "select", "prepared/16", throughIt, viaBouncer, false},
	{"… with TLS to the server: rate", false, 1, tps, "select with TLS to the server", "", throughIt, viaBouncer, false},
	{"… with TLS to the server: CPU", true, 1, cpu, "select with TLS to the server", "", throughIt, viaBouncer, false},
	{"takeover against busy sessions: p99, ms", true, 100, p99, "takeover", "", []string{crowds[0].name, crowds[1].name}, "", false},
	{"takeover against a frozen proxy with idle sessions: worst, ms", true, 500, worst, "takeover", "", []string{crowds[2].name}, "", false},
	{"… with an open transaction: worst beyond `preempt_after`, ms", true, 100, beyond, "takeover", "", []string{crowds[3].name}, "", false},
	{"large text or answer: time for each byte, of that of an eighth", true, 1.5, growingTime, "texts", "", nil, "", false},
	{"… memory for each byte, of that of an eighth", true, 1.5, growingBytes, "texts", "", nil, "", false},
	{"… a neighbour's worst wait, ms", true, 20, neighbour, "texts", "", nil, "", false},
	{"Redis through the relay, commands that are no lock's: rate against a relay that only copies", false, 0.9, commands, "relay", "", []string{viaRelay}, viaCopy, false},
	{"… `SET NX` of a lock, with its seal: p50 beyond direct, ms", true, 2, p50, "relay", "lock/1", []string{viaRelay}, direct, true},
	{"idle connections of a sidecar to PostgreSQL", true, 2, connections, "sessions", "", nil, "", false},
	{"allocations per exchange in the protocol core", true, 0, allocations, "core", "", nil, "", false},
	{"memory of an idle session, plaintext, KiB", true, 10, idleKiB, "sessions", "", []string{"proxy"}, "", false},
	{"acquire and release on Redis: rate against redislock", false, 1, leases, "leases", "", []string{"lock client"}, "bsm/redislock", false},
	{"… against rueidislock", false, 1, leases, "leases", "", []string{"lock client"}, "rueidislock", false},
}

// outcome is what one case of a goal came to.
type outcome struct {
	row row
	got spread
}

// outcomes are the cases of a goal that were measured.
func (b *book) outcomes(g goal) (all []outcome) {
	for _, r := range b.of(g.work) {
		if g.ways != nil && !slices.Contains(g.ways, r.way) || !strings.HasSuffix(r.setting(), g.only) {
			continue
		}
		got := b.spread(r, g.figure)
		if g.against != "" {
			got = b.against(r, g.against, g.figure, g.subtract)
		}
		if !got.none() {
			all = append(all, outcome{r, got})
		}
	}
	return all
}

// verdict is a line of the table of goals: the worst case, and in how many it falls short.
func (g goal) verdict(cases []outcome) (line string, missed bool) {
	worst, short := cases[0], 0
	for _, c := range cases {
		if x, y := c.got.median, worst.got.median; g.most && x > y || !g.most && x < y {
			worst = c
		}
		if x := c.got.median; g.most && x > g.want || !g.most && x < g.want {
			short++
		}
	}
	sign, result, where := "≥", "reached", ""
	if g.most {
		sign = "≤"
	}
	if len(cases) > 1 {
		where = worst.row.String()
	}
	switch {
	case short > 0 && len(cases) > 1:
		result = fmt.Sprintf("**falls short** in %d of %d", short, len(cases))
	case short > 0:
		result = "**falls short**"
	}
	return fmt.Sprintf("| %s | %s %v | %s | %s | %s |", g.text, sign, g.want, worst.got, where, result), short > 0
}

// cost is what a user adds, and what that costs by the figures of goals, or of what has none.
type cost struct {
	of, text string
	is       []goal
}

var costs = []cost{
	{"the proxy, instead of PgBouncer", "%s of PgBouncer's rate for inserts, %s for selects", []goal{
		{figure: tps, work: "insert", ways: throughIt, against: viaBouncer}, {figure: tps, work: "select", ways: throughIt, against: viaBouncer}}},
	{"the proxy, instead of a direct connection", "%s of that rate for inserts, %s for selects", []goal{
		{figure: tps, work: "insert", ways: throughIt, against: direct}, {figure: tps, work: "select", ways: throughIt, against: direct}}},
	{"a fence, in a busy session", "%s of the proxy's rate without one for inserts, %s for selects", []goal{
		{figure: tps, work: "insert", ways: bothFences, against: viaProxy}, {figure: tps, work: "select", ways: bothFences, against: viaProxy}}},
	{"a fence, on a statement after a pause", "%s times the proxy's latency without one (p50), with %s round trips to the server", []goal{
		{figure: p50, work: "isolated", ways: bothFences, against: viaProxy}, {figure: trips, work: "trips", ways: bothFences}}},
	{"a fence by code of your own, instead", "%s of a direct connection's rate for inserts", []goal{
		{figure: tps, work: "insert", ways: []string{application}, against: direct}}},
	{"a guard on a table", "%s of a direct connection's rate for inserts", []goal{
		{figure: tps, work: "guards", ways: []string{direct + guarded}, against: direct}}},
	{"a takeover", "the next holder waits %s ms for busy sessions (p99), and %s ms at worst for a frozen proxy with idle ones", []goal{
		{figure: p99, work: "takeover", ways: []string{crowds[0].name, crowds[1].name}}, {figure: worst, work: "takeover", ways: []string{crowds[2].name}}}},
	{"a session", "%s KiB when idle; a login of %s ms instead of %s", []goal{
		{figure: idleKiB, work: "sessions", ways: []string{"proxy"}}, {figure: login, work: "login", ways: throughIt}, {figure: login, work: "login", ways: []string{direct}}}},
}

// line is a row of the table of costs; "" if a part was not measured.
func (b *book) line(c cost) string {
	var values []any
	for _, g := range c.is {
		cases := b.outcomes(g)
		if len(cases) == 0 {
			return ""
		}
		low, high := cases[0].got.median, cases[0].got.median
		for _, o := range cases {
			low, high = min(low, o.got.median), max(high, o.got.median)
		}
		between := number(low)
		if number(high) != between {
			between += "–" + number(high)
		}
		values = append(values, between)
	}
	return fmt.Sprintf("| %s | %s |", c.of, fmt.Sprintf(c.text, values...))
}
