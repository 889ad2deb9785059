package weave

import (
	"testing"

	"github.com/wirefence/wirefence/fence"
)

var (
	write  = Step{Write: true}
	read   = Step{}
	commit = Step{EndsTx: true}
	setter = Step{Setter: true}
	undo   = Step{Uncovers: true}
	own    = Step{Write: true, Setter: true, Behind: true}
	cic    = Step{Write: true, Unfenceable: "CREATE INDEX CONCURRENTLY"}
)

func TestChecksStandBeforeEveryUncoveredWrite(t *testing.T) {
	comment, variable := Carrier{Comment: "orders=34"}, Carrier{Variable: true}
	for _, c := range []struct {
		name     string
		steps    []Step
		by       Carrier
		covered  Coverage
		required bool
		inserts  []int // indexes of statements
		refuse   fence.SQLState
	}{
		{"one write", []Step{write}, comment, Coverage{}, false, []int{0}, ""},
		{"reads only", []Step{read, read}, comment, Coverage{}, false, nil, ""},
		{"the check follows BEGIN", []Step{read, write, write}, variable, Coverage{}, false, []int{1}, ""},
		{"a commit between", []Step{write, commit, write, commit, read}, variable, Coverage{}, false, []int{0, 2}, ""},
		{"covered already", []Step{write}, variable, Coverage{}.Add(variable), false, nil, ""},
		{"covered for another fence", []Step{write}, comment, Coverage{}.Add(Carrier{Comment: "orders=33"}), false, []int{0}, ""},
		{"covered for the variable only", []Step{write}, comment, Coverage{}.Add(variable), false, []int{0}, ""},
		{"a savepoint rolled back", []Step{write, undo, write}, variable, Coverage{}, false, []int{0, 2}, ""},
		{"a SET in the message", []Step{setter, write}, Carrier{}, Coverage{}, false, []int{1}, ""},
		{"a SET after a check", []Step{write, setter, write}, variable, Coverage{}, false, []int{0, 2}, ""},
		{"a SET under a comment", []Step{write, setter, write}, comment, Coverage{}, false, []int{0}, ""},
		{"a write that sets its fence", []Step{own}, Carrier{}, Coverage{}, false, []int{End}, ""},
		{"that and another", []Step{own, read, write}, Carrier{}, Coverage{}, false, []int{1, 2}, ""},
		{"that and another at once", []Step{own, write}, variable, Coverage{}, false, []int{0, 1, 1}, ""},
		{"that under a comment", []Step{own, write}, comment, Coverage{}, false, []int{0}, ""},
		{"that behind a pooler", []Step{own}, Carrier{Pooled: true}, Coverage{}, false, nil, ""},
		{"no fence", []Step{write}, Carrier{}, Coverage{}, false, nil, ""},
		{"no fence where one is required", []Step{read, write}, Carrier{}, Coverage{}, true, nil, fence.TokenRequired},
		{"reads where one is required", []Step{read}, Carrier{}, Coverage{}, true, nil, ""},
		{"a required fence set in the message", []Step{setter, write}, Carrier{}, Coverage{}, true, []int{1}, ""},
		{"not to be fenced", []Step{cic}, comment, Coverage{}, false, nil, fence.CannotBeFenced},
		{"not to be fenced, and no fence", []Step{cic}, Carrier{}, Coverage{}, false, nil, ""},
		{"not to be fenced where one is required", []Step{cic}, Carrier{}, Coverage{}, true, nil, fence.TokenRequired},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps := append([]Step(nil), c.steps...)
			for i := range steps {
				steps[i].At = i
			}
			var p Plan
			p.Query(steps, c.by, c.covered, c.required)
			if p.Refuse != c.refuse {
				t.Fatalf("refused with %q, want %q", p.Refuse, c.refuse)
			}
			if c.refuse == "" && !equal(p.Inserts, c.inserts) {
				t.Fatalf("checks before %v, want %v", p.Inserts, c.inserts)
			}
		})
	}
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestPositionsAndResultsOfAWovenText(t *testing.T) {
	text := "INSERT x; COMMIT; INSERT y"
	var p Plan
	by := Carrier{Comment: "a=1"}
	p.Query([]Step{{At: 0, Write: true}, {At: 10, EndsTx: true}, {At: 18, Write: true}}, by, Coverage{}, false)
	woven := string(p.Rewrite(nil, []byte(text), NewCall("", false, false), func(b []byte) int { return len(b) }))
	check := "SELECT wirefence.check('a=1', NULL, false);"
	if want := check + "INSERT x; COMMIT; " + check + "INSERT y"; woven != want {
		t.Fatalf("got  %s\nwant %s", woven, want)
	}
	for at := 1; at <= len(woven); at++ {
		got := p.Position(at)
		if got == 0 {
			continue
		}
		if text[got-1] != woven[at-1] {
			t.Errorf("position %d came back as %d: %q is not %q", at, got, woven[at-1], text[got-1])
		}
	}
	if p.Position(1) != 0 || p.Position(len(check)+1) != 1 || p.Position(len(woven)) != len(text) {
		t.Error("positions at the edges are wrong")
	}
	var ours []bool
	for range 5 {
		ours = append(ours, p.Ours())
		p.NextResult()
	}
	for i, want := range []bool{true, false, false, true, false} {
		if ours[i] != want {
			t.Errorf("result %d: ours is %v", i, ours[i])
		}
	}
}

// A check behind the last statement stands behind whatever the text ends in.
func TestACheckBehindTheText(t *testing.T) {
	for _, text := range []string{"INSERT x", "INSERT x;", "INSERT x -- the end"} {
		var p Plan
		p.Query([]Step{own}, Carrier{}, Coverage{}, false)
		woven := string(p.Rewrite(nil, []byte(text), NewCall("", false, false), func(b []byte) int { return len(b) }))
		if want := text + "\n;SELECT wirefence.check(NULL, NULL, false)" + wrote + ";"; woven != want {
			t.Errorf("got  %s\nwant %s", woven, want)
		}
		if p.Ours() || p.Position(len(text)) != len(text) || p.Position(len(text)+3) != 0 {
			t.Errorf("%s: the client's part is not the first", text)
		}
		if p.NextResult(); !p.Ours() {
			t.Errorf("%s: the check's result is not ours", text)
		}
		if p.After.Covers(Carrier{Variable: true}) {
			t.Errorf("%s: what may have tested nothing counts as a check", text)
		}
	}
}

func TestTheCallNamesItsPolicy(t *testing.T) {
	for _, c := range []struct {
		call Call
		by   Carrier
		want string
	}{
		{NewCall("", false, false), Carrier{}, "SELECT wirefence.check($1, NULL, false)"},
		{NewCall("orders", true, false), Carrier{}, "SELECT wirefence.check($1, 'orders', true)"},
		{NewCall("orders", true, false), Carrier{Behind: true}, "SELECT wirefence.check($1, 'orders', false) WHERE pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL"},
		{NewCall("orders", true, false), Carrier{Reads: true}, "SELECT wirefence.check_read($1, 'orders')"},
		{NewCall("o'b", false, true), Carrier{}, "SELECT wirefence.observe($1, pg_catalog.convert_from(pg_catalog.decode('6f2762', 'hex'), 'UTF8'), false)"},
	} {
		if got := c.call.Prepared(c.by); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}
