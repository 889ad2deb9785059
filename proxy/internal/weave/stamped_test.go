package weave

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
)

// TestStamps plans texts of sessions of a proxy that has a lease of its own.
func TestStamps(t *testing.T) {
	const (
		stamp  = "check('l=7', NULL, true)"
		either = "check(CASE WHEN pg_catalog.current_setting('wirefence.token', true) OPERATOR(pg_catalog.<>) '' THEN NULL ELSE 'l=7' END, NULL, true)"
		own    = "check('orders=34', NULL, true)"
		unheld = "check(NULL, NULL, true)"
		verify = "check(pg_catalog.current_setting(CASE"
	)
	nothing, perhaps := Carrier{Leased: true, Stamp: "l=7"}, Carrier{Leased: true, Stamp: "l=7", Variable: true}
	standby, standbyPerhaps := Carrier{Leased: true}, Carrier{Leased: true, Variable: true}
	comment := Carrier{Leased: true, Stamp: "l=7", Comment: "orders=34"}
	pooled := Carrier{Leased: true, Stamp: "l=7", Pooled: true}
	believes := Carrier{Leased: true, Stamp: "l=7", Pooled: true, Expect: "orders=34"}
	local := Step{Setter: true, Sets: true}
	for _, c := range []struct {
		name    string
		steps   []Step
		by      Carrier
		covered Coverage
		checks  []string // how each begins
		refuse  fence.SQLState
	}{
		{"nothing", []Step{read, write, write}, nothing, Coverage{}, []string{stamp}, ""},
		{"the variable, perhaps", []Step{write, write}, perhaps, Coverage{}, []string{either}, ""},
		{"set in the message", []Step{write, setter, write}, nothing, Coverage{}, []string{stamp, either}, ""},
		{"a comment", []Step{write}, comment, Coverage{}, []string{own}, ""},
		{"a comment behind a stamp", []Step{write}, comment, Coverage{}.Add(nothing), []string{own}, ""},
		{"a stamp behind a comment", []Step{write}, nothing, Coverage{}.Add(comment), []string{stamp}, ""},
		{"stamped already", []Step{write}, nothing, Coverage{}.Add(nothing), nil, ""},
		{"stamped already, before the variable came into doubt", []Step{write}, perhaps, Coverage{}.Add(nothing), []string{either}, ""},
		{"stamped by an earlier lease", []Step{write}, nothing, Coverage{}.Add(Carrier{Leased: true, Stamp: "l=6"}), []string{stamp}, ""},
		{"the variable, perhaps, checked by an earlier lease", []Step{write}, perhaps, Coverage{}.Add(Carrier{Leased: true, Stamp: "l=6", Variable: true}), []string{either}, ""},
		{"another transaction", []Step{write, commit, write}, nothing, Coverage{}, []string{stamp, stamp}, ""},
		{"a savepoint rolled back", []Step{write, undo, write}, nothing, Coverage{}, []string{stamp, stamp}, ""},
		{"not to be fenced", []Step{cic}, nothing, Coverage{}, nil, fence.CannotBeFenced},
		{"on standby", []Step{read, write}, standby, Coverage{}, nil, fence.LeaseNotHeld},
		{"reads on standby", []Step{read, read}, standby, Coverage{}, nil, ""},
		{"not to be fenced, on standby", []Step{cic}, standby, Coverage{}, nil, fence.LeaseNotHeld},
		{"the lease was lost in the transaction", []Step{write}, standby, Coverage{}.Add(nothing), nil, fence.LeaseNotHeld},
		{"lost, and the variable, perhaps", []Step{write}, standbyPerhaps, Coverage{}.Add(perhaps), []string{unheld}, ""},
		{"a comment on standby", []Step{write}, Carrier{Leased: true, Comment: "orders=34"}, Coverage{}, []string{own}, ""},
		{"set in the message on standby", []Step{setter, write}, standby, Coverage{}, []string{unheld}, ""},
		{"behind a pooler", []Step{write}, pooled, Coverage{}, []string{stamp}, ""},
		{"a belief behind a pooler", []Step{write}, believes, Coverage{}, []string{verify}, ""},
		{"set behind a pooler", []Step{local, write, commit, write}, pooled, Coverage{}, []string{either, stamp}, ""},
		{"on standby behind a pooler", []Step{write}, Carrier{Leased: true, Pooled: true}, Coverage{}, nil, fence.LeaseNotHeld},
		{"lost from sight behind a pooler", []Step{write}, Carrier{Leased: true, Stamp: "l=7", Pooled: true, Lost: true}, Coverage{}, nil, fence.CannotBeFenced},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps, text := append([]Step(nil), c.steps...), ""
			for i := range steps {
				steps[i].At = len(text)
				text += "x;"
			}
			var p Plan
			p.Query(steps, c.by, c.covered, false)
			if p.Refuse != c.refuse {
				t.Fatalf("refused with %q, want %q", p.Refuse, c.refuse)
			}
			if c.refuse != "" {
				return
			}
			var checks []string
			woven := string(p.Rewrite(nil, []byte(text), NewCall("", false, false).Leased(), func(b []byte) int { return len(b) }))
			for part := range strings.SplitSeq(woven, ";") {
				if check, ok := strings.CutPrefix(part, "SELECT wirefence."); ok {
					checks = append(checks, check)
				}
			}
			if len(checks) != len(c.checks) {
				t.Fatalf("checks %q, want %q", checks, c.checks)
			}
			for i, check := range checks {
				if !strings.HasPrefix(check, c.checks[i]) {
					t.Errorf("check %q, want %q", check, c.checks[i])
				}
			}
		})
	}
}

// TestParametersOfAStamp prepares what TestStamps puts into texts.
func TestParametersOfAStamp(t *testing.T) {
	const null = "<null>"
	call := NewCall("orders", false, false).Leased()
	if got, want := call.Prepared(Carrier{}), "SELECT wirefence.check(COALESCE($1, CASE WHEN pg_catalog.current_setting('wirefence.token', true) OPERATOR(pg_catalog.<>) '' THEN NULL ELSE $2 END), 'orders', true)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for _, c := range []struct {
		by   Carrier
		want string
	}{
		{Carrier{Leased: true, Stamp: "l=7"}, "l=7 " + null},
		{Carrier{Leased: true, Stamp: "l=7", Variable: true}, null + " l=7"},
		{Carrier{Leased: true, Variable: true}, null + " " + null},
		{Carrier{Leased: true, Stamp: "l=7", Variable: true, Comment: "orders=34"}, "orders=34 " + null},
		{Carrier{Leased: true, Stamp: "l=7", Pooled: true, Expect: "orders=34"}, "orders=34"},
		{Carrier{Leased: true, Stamp: "l=7", Pooled: true}, "l=7 " + null},
	} {
		by := c.by.In(Coverage{})
		var got []string
		params, n := call.Parameters(&by)
		for _, p := range params[:n] {
			text := null
			if p != nil {
				text = *p
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: parameters %q, want %q", c.by, got, c.want)
		}
		if verifies := strings.Contains(call.Unprepared(by), "elsewhere"); verifies != (len(got) == 1) {
			t.Errorf("%+v: the text and the parameters don't fit: %s", c.by, call.Unprepared(by))
		}
	}
}
