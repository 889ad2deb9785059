package wiretest

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// script is a scenario: what a client sends and where it waits.
type script struct {
	name  string // begins with the number of its case, see cases
	from  int    // the first version that knows it; 0 is every one
	large bool   // only sent whole
	// idles says that its session is idle under a hold, which it gives back after a second: on a busy
	// machine another try may be needed.
	idles bool
	setup string // SQL that a superuser runs before each run
	steps []step
	begin func(db string) []byte // the first bytes, in the place of a startup packet
	with  []string               // names and values for the startup packet
	// checked says what a session sees whose fence is checked in the place of what
	// PostgreSQL answers to one that carries none, and held the same of one that holds
	// its fence. Nil: nothing differs.
	checked, held difference
}

// run runs the script once and returns all that the client saw, and what the
// table t held in the end.
func (s *script) run(t testing.TB, pl *place, addr string, cut cut, by carrier) []string {
	t.Helper()
	pl.Exec(t, "TRUNCATE public.t; ALTER SEQUENCE public.numbers RESTART; DROP SCHEMA IF EXISTS x CASCADE; CREATE SCHEMA x")
	if s.setup != "" {
		pl.Exec(t, s.setup)
	}
	p := dial(t, pl, addr)
	defer p.Conn.Close()
	p.Cut, p.Text = cut, by.text
	if s.begin != nil {
		p.Write(s.begin(pl.Name))
	} else {
		p.Write(stack.Startup(v30, pl.Name, append(slices.Clone(by.startup), s.with...)...))
	}
	for i, step := range s.steps {
		step(p)
		if i == 0 && by.holds && s.begin == nil && len(s.steps) > 1 {
			p.query("SELECT 'the first is checked'")
			p.query("SELECT 'the second takes the hold'")
		}
	}
	lines := p.transcript()
	p.Conn.Close()
	pid, _ := p.Key()
	pl.Becomes(t, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1", pid)
	return append(lines, "t holds "+pl.rows(t))
}

// carrier is a way to carry a fence, and to enforce it.
type carrier struct {
	name    string
	startup []string
	text    func(string) string
	holds   bool // the session is busy, and so under a hold, from the start
	differs func(*script) difference
}

// hold is the period of a hold under which a carrier's sessions hold from the second
// group to their end, or hold no longer than a statement needs that can't be checked.
func (by carrier) hold() time.Duration {
	if by.holds {
		return 10 * time.Second // the longest there is
	}
	return 1
}

// stores finds a text that stores a statement: PREPARE and DECLARE take no
// fence in a comment.
var stores = regexp.MustCompile(`(?i)\b(PREPARE|DECLARE)\b`)

func comment(sql string) string {
	if stores.MatchString(sql) {
		return sql
	}
	return sql + "\n/*wirefence.token='orders=34'*/"
}

func whenChecked(s *script) difference { return s.checked }
func whenHeld(s *script) difference    { return s.held }

var (
	unfenced     = carrier{name: "unfenced"}
	byVariable   = carrier{name: "variable", startup: []string{"options", "-c wirefence.token=orders=34"}, differs: whenChecked}
	byComment    = carrier{name: "comment", text: comment, differs: whenChecked}
	heldVariable = carrier{name: "variable, held", startup: byVariable.startup, differs: whenHeld, holds: true}
	heldComment  = carrier{name: "comment, held", text: comment, differs: whenHeld, holds: true}
	carriers     = []carrier{unfenced, byVariable, byComment, heldVariable, heldComment}
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

// TestScripts runs every script direct and through the proxy, without a fence and
// with one that is checked or held; the answers must be equal, but for what a script
// says. Sessions without a fence get them whole, byte by byte and cut at random. In make
// test two of the ways are tried.
//
// Evidence: I6
func TestScripts(t *testing.T) {
	some := carriers
	if stack.Alone() {
		some = []carrier{unfenced, heldComment}
	}
	for _, major := range majors {
		for _, by := range some {
			t.Run(fmt.Sprintf("%d/%s", major, by.name), func(t *testing.T) {
				t.Parallel()
				pl := at(t, major)
				front := cutProxy(t, pl, proxy.Options{Hold: by.hold()})
				for _, s := range scripts {
					if major < s.from {
						continue
					}
					t.Run(s.name, func(t *testing.T) { s.agree(t, pl, front, by, major) })
				}
			})
		}
	}
}

// agree runs the script direct and through the proxy.
func (s *script) agree(t *testing.T, pl *place, front string, by carrier, major int) {
	want := s.run(t, pl, pl.Addr(), whole, by)
	if by.differs != nil && by.differs(s) != nil {
		want = by.differs(s)(want, by, major)
	}
	for _, c := range cuts {
		if c.name != "whole" && (s.large || by.holds) || c.name == "byte by byte" && by.name != unfenced.name {
			continue
		}
		d := part(want, s.run(t, pl, front, c.cut(), by))
		for try := 0; d != "" && s.idles && try < 3; try++ {
			d = part(want, s.run(t, pl, front, c.cut(), by))
		}
		if d != "" {
			t.Fatalf("sent %s: %s", c.name, d)
		}
	}
}

// part says where two transcripts part; "" if they don't.
func part(want, got []string) string {
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
