package main

import (
	"cmp"
	"fmt"
	"slices"
)

// way is how a client reaches the database, and what it does to be fenced.
type way struct {
	name   string
	target target
	script string // in scripts/
	fence  string // value of the session variable
	// database is database unless it is named.
	database string
	tls      bool // the client's side is encrypted
	// variables of the script, beside the workload's.
	variables []string
}

type target string

const (
	postgres  target = "PostgreSQL"
	pgbouncer target = "PgBouncer"
	wirefence target = "proxy"
	checking  target = "proxy without holds" // WIREFENCE_HOLD=0
	// These speak TLS to the server, and to clients that want it.
	encryptedBouncer target = "PgBouncer with TLS"
	encryptedProxy   target = "proxy with TLS"
)

const fenceText = "orders=34"

// Names of ways that the goals speak of.
const (
	direct      = "direct"
	viaBouncer  = "PgBouncer"
	viaProxy    = "proxy, unfenced"
	byComment   = "proxy, fenced by comment"
	byVariable  = "proxy, fenced by session variable"
	application = "direct, fenced by the application"
)

// workload is what is done in each of the ways.
type workload struct {
	name      string
	title     string // by default the name
	ways      []way
	writes    bool     // each run starts with empty tables
	protocols []string // nil: all
	clients   []int    // nil: those of the flag
	variables []string // of pgbench's script, as name=value
}

var workloads = []workload{
	{name: "insert", writes: true, ways: []way{
		{name: direct, target: postgres, script: "insert.sql"},
		{name: viaBouncer, target: pgbouncer, script: "insert.sql"},
		{name: viaProxy, target: wirefence, script: "insert.sql"},
		{name: byComment, target: wirefence, script: "insert_comment.sql"},
		{name: byVariable, target: wirefence, script: "insert.sql", fence: fenceText},
		{name: application, target: postgres, script: "insert_application.sql"},
	}},
	{name: "select", ways: []way{
		{name: direct, target: postgres, script: "select.sql"},
		{name: viaBouncer, target: pgbouncer, script: "select.sql"},
		{name: viaProxy, target: wirefence, script: "select.sql"},
		{name: byComment, target: wirefence, script: "select_comment.sql"},
		{name: byVariable, target: wirefence, script: "select.sql", fence: fenceText},
	}},
	{name: "tls-insert", title: "insert, TLS to the server", writes: true, protocols: []string{"prepared"}, ways: []way{
		{name: direct, target: postgres, script: "insert.sql", tls: true},
		{name: viaBouncer, target: encryptedBouncer, script: "insert.sql"},
		{name: viaProxy, target: encryptedProxy, script: "insert.sql"},
		{name: byComment, target: encryptedProxy, script: "insert_comment.sql"},
		{name: byVariable, target: encryptedProxy, script: "insert.sql", fence: fenceText},
	}},
	{name: "tls-select", title: "select, TLS to the server", protocols: []string{"prepared"}, ways: []way{
		{name: direct, target: postgres, script: "select.sql", tls: true},
		{name: viaBouncer, target: encryptedBouncer, script: "select.sql"},
		{name: viaProxy, target: encryptedProxy, script: "select.sql"},
	}},
	{name: "tls-both-select", title: "select, TLS on both sides", protocols: []string{"prepared"}, ways: []way{
		{name: direct, target: postgres, script: "select.sql", tls: true},
		{name: viaBouncer, target: encryptedBouncer, script: "select.sql", tls: true},
		{name: viaProxy, target: encryptedProxy, script: "select.sql", tls: true},
	}},
}

// caption is the workload's name in headlines.
func (w workload) caption() string { return cmp.Or(w.title, w.name) }

var protocols = []string{"simple", "prepared"}

// group is what is measured side by side: all ways of one workload, with one
// protocol and number of clients.
type group struct {
	workload workload
	protocol string
	clients  int
}

func (g group) String() string {
	return fmt.Sprintf("%s/%s/%d", g.workload.name, g.protocol, g.clients)
}

// key names one measurement, as -only matches it.
func (g group) key(way string) string { return g.String() + "/" + way }

// groups returns what is to be measured of workloads. Ways that only doesn't match are
// left out, and groups that are empty then.
func groups(workloads []workload, clients []int, only func(string) bool) (all []group) {
	for _, w := range workloads {
		if w.protocols == nil {
			w.protocols = protocols
		}
		if w.clients == nil {
			w.clients = clients
		}
		for _, protocol := range w.protocols {
			for _, n := range w.clients {
				g := group{w, protocol, n}
				g.workload.ways = slices.DeleteFunc(slices.Clone(w.ways), func(way way) bool { return !only(g.key(way.name)) })
				if len(g.workload.ways) > 0 {
					all = append(all, g)
				}
			}
		}
	}
	return all
}
