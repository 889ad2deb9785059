package wiretest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/proxy"
)

// script is a scenario: what a client sends and where it waits.
type script struct {
	name  string // begins with the number of its case, see docs/protocol.md
	from  int    // the first version that knows it; 0 is every one
	large bool   // only sent whole
	setup string // SQL that a superuser runs before each run
	steps []step
	begin func(db string) []byte // the first bytes, in the place of a startup packet
	with  []string               // names and values for the startup packet
	// fenced says what a session that carries a fence sees in the place of what
	// PostgreSQL answers to one that carries none. Nil: nothing differs.
	fenced func(direct []string, by carrier, major int) []string
}

// run runs the script once and returns all that the client saw, and what the
// table t held in the end.
func (s *script) run(t tb, pl *place, addr string, cut cut, by carrier) []string {
	t.Helper()
	pl.exec(t, "TRUNCATE public.t; ALTER SEQUENCE public.numbers RESTART; DROP SCHEMA IF EXISTS x CASCADE; CREATE SCHEMA x")
	if s.setup != "" {
		pl.exec(t, s.setup)
	}
	p := dial(t, pl, addr)
	defer p.conn.Close()
	p.cut, p.text = cut, by.text
	if s.begin != nil {
		p.write(s.begin(pl.db))
	} else {
		p.write(startup(pl.db, append(slices.Clone(by.startup), s.with...)...))
	}
	for _, step := range s.steps {
		step(p)
	}
	lines := p.transcript()
	p.conn.Close()
	pid, _ := p.key()
	pl.becomes(t, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1", pid)
	return append(lines, "t holds "+pl.rows(t))
}

// carrier is a way to carry a fence.
type carrier struct {
	name    string
	startup []string
	text    func(string) string
}

var (
	unfenced   = carrier{name: "unfenced"}
	byVariable = carrier{name: "variable", startup: []string{"options", "-c wirefence.token=orders=34"}}
	byComment  = carrier{name: "comment", text: func(sql string) string {
		return sql + "\n/*wirefence.token='orders=34'*/"
	}}
)

var scripts = slices.Concat(extendedScripts, errorScripts, simpleScripts, copyScripts, stateScripts, sessionScripts)

// cuts are the ways in which what the client sends is cut into pieces.
var cuts = []struct {
	name string
	cut  func() cut
}{
	{"whole", func() cut { return whole }},
	{"byte by byte", func() cut { return bytewise }},
	{"in random pieces", func() cut { return random(rand.Uint64()) }},
}

// TestScripts runs every script direct, and through the proxy whole, byte by
// byte and cut at random; the answers must be equal, but for what a script says
// of sessions that carry a fence. Versions that aren't among the majors run them
// whole, and unless they are the oldest, only unfenced.
func TestScripts(t *testing.T) {
	for _, major := range servers.PostgresVersions() {
		for _, by := range []carrier{unfenced, byVariable, byComment} {
			if by.name != unfenced.name && !slices.Contains(majors, major) && major != slices.Min(servers.PostgresVersions()) {
				continue
			}
			t.Run(fmt.Sprintf("%d/%s", major, by.name), func(t *testing.T) {
				t.Parallel()
				pl := at(t, major)
				socket := unixSocket(t)
				stackProxy(t, pl, proxy.Options{Listen: []string{"unix:" + socket}})
				for _, s := range scripts {
					if major < s.from {
						continue
					}
					t.Run(s.name, func(t *testing.T) {
						want := s.run(t, pl, pl.Addr(), whole, by)
						if by.name != unfenced.name && s.fenced != nil {
							want = s.fenced(slices.Clone(want), by, major)
						}
						for _, c := range cuts {
							if c.name != "whole" && (s.large || !slices.Contains(majors, major)) || c.name == "byte by byte" && by.name != unfenced.name {
								continue
							}
							if d := difference(want, s.run(t, pl, socket, c.cut(), by)); d != "" {
								t.Fatalf("sent %s: %s", c.name, d)
							}
						}
					})
				}
			})
		}
	}
}

// difference says where two transcripts part; "" if they don't.
func difference(want, got []string) string {
	at := 0
	for at < len(want) && at < len(got) && alike(want[at], got[at]) {
		at++
	}
	if at == len(want) && at == len(got) {
		return ""
	}
	tail := func(lines []string) string {
		return "\t" + strings.Join(lines[min(at, len(lines)):], "\n\t")
	}
	return fmt.Sprintf("after %d equal messages, wanted\n%s\ngot\n%s", at, tail(want), tail(got))
}

func alike(want, got string) bool {
	begin, open := strings.CutSuffix(want, "*")
	return want == got || open && strings.HasPrefix(got, begin)
}
