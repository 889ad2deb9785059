package weave

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
)

// TestBehindAPooler plans texts of a client that believes in a value of the
// session variable.
func TestBehindAPooler(t *testing.T) {
	set, local := Step{Setter: true, Sets: true, Keeps: true}, Step{Setter: true, Sets: true}
	save, back, release := Step{Saves: true}, Step{Uncovers: true, Undoes: true}, Step{Uncovers: true}
	nothing, believes := Carrier{Pooled: true}, Carrier{Pooled: true, Expect: "orders=34"}
	lost := Carrier{Pooled: true, Lost: true}
	const verified, plain = "current_setting(", "check(NULL"
	for _, c := range []struct {
		name   string
		steps  []Step
		by     Carrier
		checks []string // what is in each
		refuse bool
	}{
		{"no fence", []Step{write, write}, nothing, nil, false},
		{"a value to verify", []Step{write, write}, believes, []string{verified}, false},
		{"again in the next transaction", []Step{write, commit, write}, believes, []string{verified, verified}, false},
		{"not known", []Step{write}, lost, nil, true},
		{"not known, but a read", []Step{read}, lost, nil, false},
		{"set in the transaction", []Step{local, write}, lost, []string{plain}, false},
		{"set behind a check", []Step{write, local, write}, believes, []string{verified, plain}, false},
		{"unfenced behind the transaction", []Step{local, write, commit, write}, nothing, []string{plain}, false},
		{"another belief behind the transaction", []Step{set, write, commit, write}, nothing, nil, true},
		{"a savepoint behind it", []Step{local, save, write, back, write}, nothing, []string{plain, plain}, false},
		{"a savepoint before it", []Step{save, local, back, write}, nothing, nil, true},
		{"a savepoint before it, released", []Step{save, local, release, write}, nothing, []string{plain}, false},
		{"set again behind the way back", []Step{save, local, back, local, write}, nothing, []string{plain}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps, text := append([]Step(nil), c.steps...), ""
			for i := range steps {
				steps[i].At = len(text)
				text += "x;"
			}
			var p Plan
			p.Query(steps, c.by, Coverage{}, false)
			if p.Unknown != c.refuse || c.refuse != (p.Refuse == fence.CannotBeFenced) {
				t.Fatalf("refused: %v (%q)", p.Unknown, p.Refuse)
			}
			if c.refuse {
				return
			}
			woven := string(p.Rewrite(nil, []byte(text), NewCall("", false, false), func(b []byte) int { return len(b) }))
			var checks []string
			for part := range strings.SplitSeq(woven, ";") {
				if strings.HasPrefix(part, "SELECT") {
					checks = append(checks, part)
				}
			}
			if len(checks) != len(c.checks) {
				t.Fatalf("woven %s", woven)
			}
			for i, want := range c.checks {
				if !strings.Contains(checks[i], want) {
					t.Errorf("check %d is %s, want %s", i, checks[i], want)
				}
			}
			for at := 1; at <= len(woven); at++ {
				if got := p.Position(at); got > 0 && text[got-1] != woven[at-1] {
					t.Errorf("position %d came back as %d", at, got)
				}
			}
			results := 0
			for i := range steps {
				for p.Ours() {
					p.NextResult()
					results++
				}
				if got := p.Result(i); got != results {
					t.Errorf("the result of statement %d is number %d, not %d", i, results, got)
				}
				p.NextResult()
				results++
			}
		})
	}
}

func TestAFailedTransactionKeepsWhatItMayHaveSet(t *testing.T) {
	local, save := Step{Setter: true, Sets: true}, Step{Saves: true}
	early, late := Coverage{}.After(local).After(save), Coverage{}.After(save).After(local)
	for _, c := range []struct {
		name         string
		before, sent Coverage
		own, lost    bool
	}{
		{"nothing was set", Coverage{}, Coverage{}, false, false},
		{"set before any savepoint", early, early, true, false},
		{"set behind one", late, late, false, true},
		{"set in the message that failed", Coverage{}, early, false, true},
	} {
		got := c.before.Aborted(c.sent)
		if got.own != c.own || got.lost != c.lost || !got.saved {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
