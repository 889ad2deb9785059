package main

import (
	"fmt"
	"slices"
	"strings"
)

// target is what a client connects to.
type target string

const (
	postgres     target = "PostgreSQL"
	pgbouncer    target = "PgBouncer"
	newBouncer   target = "PgBouncer that reuses no connection"
	bouncerTLS   target = "PgBouncer with TLS"
	wirefence    target = "proxy"
	checking     target = "proxy without holds"
	wirefenceTLS target = "proxy with TLS"
	base         target = "base"
	baseTLS      target = "base with TLS"
)

// rival is how a target is started. TLS is to the server, and for clients that want it.
type rival struct {
	bouncer, tls bool
	settings     map[string]string
}

var rivals = map[target]rival{
	pgbouncer:    {bouncer: true},
	newBouncer:   {bouncer: true, settings: map[string]string{"server_lifetime": "0"}},
	bouncerTLS:   {bouncer: true, tls: true},
	wirefence:    {},
	checking:     {settings: map[string]string{"WIREFENCE_HOLD": "0"}},
	wirefenceTLS: {tls: true},
}

// way is how a client reaches the database, and what it does to be fenced.
type way struct {
	name    string
	target  target
	comment bool   // the fences in the script's comments stay
	fence   string // value of the session variable
	script  string // another one than the workload's
	guarded bool   // in the database whose tables are guarded
}

// Names of ways, as the goals and the page have them.
const (
	direct       = "direct"
	viaBouncer   = "PgBouncer"
	viaProxy     = "proxy, unfenced"
	byComment    = "proxy, fenced by comment"
	byVariable   = "proxy, fenced by session variable"
	application  = "direct, fenced by the application"
	checkComment = "proxy without holds, fenced by comment"
	checkVar     = "proxy without holds, fenced by session variable"
	guarded      = ", guarded"
)

const fence = "orders=34"

var (
	directly     = way{name: direct, target: postgres}
	bouncer      = way{name: viaBouncer, target: pgbouncer}
	unfenced     = way{name: viaProxy, target: wirefence}
	commented    = way{name: byComment, target: wirefence, comment: true}
	withVariable = way{name: byVariable, target: wirefence, fence: fence}
)

// workload is a script of pgbench that is run in several ways, side by side.
type workload struct {
	name, script string
	writes       bool // each run starts with empty tables
	protocols    []string
	clients      []int
	more         []string // arguments of pgbench
	ways         []way
}

var (
	bothProtocols = []string{"simple", "prepared"}
	goalClients   = []int{16, 64}
)

var workloads = []workload{
	{"insert", "insert.sql", true, bothProtocols, goalClients, nil, []way{directly, bouncer, unfenced, commented, withVariable,
		{name: application, target: postgres, script: "application.sql"}}},
	{"select", "select.sql", false, bothProtocols, goalClients, nil, []way{directly, bouncer, unfenced, commented, withVariable}},
	{"select with TLS to the server", "select.sql", false, []string{"prepared"}, []int{16}, nil, []way{
		{name: viaBouncer, target: bouncerTLS}, {name: viaProxy, target: wirefenceTLS}}},
	{"guards", "insert.sql", true, []string{"prepared"}, []int{16}, nil, []way{
		directly, {name: direct + guarded, target: postgres, fence: fence, guarded: true},
		withVariable, {name: byVariable + guarded, target: wirefence, fence: fence, guarded: true},
		commented, {name: byComment + guarded, target: wirefence, comment: true, guarded: true},
		{name: checkVar, target: checking, fence: fence}, {name: checkComment, target: checking, comment: true}}},
	{"completion", "complete.sql", true, []string{"simple"}, goalClients, nil, []way{unfenced, commented,
		{name: byVariable, target: wirefence, script: "complete_variable.sql"}}},
	{"claims", "results.sql", true, []string{"simple"}, []int{1}, []string{"-D", "claims=" + claims(1000)}, []way{unfenced, commented,
		{name: byComment + guarded, target: wirefence, comment: true, guarded: true}}},
	{"isolated", "insert.sql", true, bothProtocols, []int{8}, []string{"-R", "80"}, []way{directly, unfenced, commented, withVariable}},
	{"first statement", "insert.sql", true, []string{"simple"}, []int{1}, []string{"-C", "-R", "20"}, []way{directly, unfenced, commented, withVariable}},
	{"login", "select.sql", false, []string{"simple"}, []int{1}, []string{"-C", "-R", "20"}, []way{
		directly, {name: viaBouncer, target: newBouncer}, unfenced}},
}

// claims name the first jobs of the table.
func claims(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("job(%d)=%d", i+1, 1767225600000000+i+1)
	}
	return strings.Join(all, ",")
}

// run is one workload with a protocol and a number of clients.
type run struct {
	workload
	row row // without a way
}

// runs returns what is to be measured. Ways that only doesn't match are left out.
func runs(workloads []workload, only func(string) bool) (all []run) {
	for _, w := range workloads {
		for _, protocol := range w.protocols {
			for _, n := range w.clients {
				r := run{w, row{work: w.name, protocol: protocol, clients: n}}
				r.ways = slices.DeleteFunc(slices.Clone(w.ways), func(by way) bool { return !only(r.of(by).String()) })
				if len(r.ways) > 0 {
					all = append(all, r)
				}
			}
		}
	}
	return all
}

func (r run) of(by way) row {
	r.row.way = by.name
	return r.row
}

// beside are the workloads of two builds: what goes through the proxy, through each.
func beside(all []workload) (both []workload) {
	for _, w := range all {
		var ways []way
		for _, by := range w.ways {
			other := by
			switch by.target {
			case wirefence:
				other.target = base
			case wirefenceTLS:
				other.target = baseTLS
			default:
				continue
			}
			other.name = string(base) + ", " + by.name
			ways = append(ways, other, by)
		}
		w.ways = ways
		both = append(both, w)
	}
	return both
}
