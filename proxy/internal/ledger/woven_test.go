package ledger

import (
	"slices"
	"strings"
	"testing"
)

// weave puts a text together as a session does: statements, ahead of some of which
// goes a check.
func weave(w *Woven, statements []string, checks ...int) (client, woven string) {
	const check = "SELECT check();"
	for i, sql := range statements {
		if n := len(checks); n > 0 && slices.Contains(checks, i) {
			w.Put(i, len(client), len(check))
			woven += check
		}
		client, woven = client+sql, woven+sql
		client, woven = client+"; ", woven+"; "
	}
	return client, woven
}

func TestWovenResults(t *testing.T) {
	for _, c := range []struct {
		checks []int
		ours   string // of each result: o is the proxy's, c the client's
	}{
		{nil, "ccc"}, {[]int{0}, "occc"}, {[]int{1}, "cocc"}, {[]int{0, 2}, "occoc"}, {[]int{0, 1, 2}, "ocococ"}, {[]int{2}, "ccoc"},
	} {
		w := new(Woven)
		weave(w, []string{"A", "B", "C"}, c.checks...)
		for i, want := range c.ours {
			if got := w.Ours(); got != (want == 'o') {
				t.Errorf("checks ahead of %v: result %d is ours: %v", c.checks, i, got)
			}
			w.NextResult()
		}
		if w.Ours() {
			t.Errorf("checks ahead of %v: a result of ours is left", c.checks)
		}
	}
	var untouched Woven
	if untouched.NextResult(); untouched.Ours() || untouched.Position(7) != 7 {
		t.Error("the zero value isn't that of an untouched text")
	}
}

// Each position of the woven text that is the client's comes back to the same
// character, whichever statement's turn it is, and those in a check to none.
func TestWovenPositions(t *testing.T) {
	statements := []string{"INSERT x", "COMMIT", "INSERT y"}
	for _, checks := range [][]int{{0}, {2}, {0, 2}, {0, 1, 2}} {
		w := new(Woven)
		client, woven := weave(w, statements, checks...)
		for at := 1; at <= len(woven); at++ {
			got := w.Position(at)
			if ours := inCheck(woven, at); ours != (got == 0) || got > 0 && client[got-1] != woven[at-1] {
				t.Errorf("checks ahead of %v: position %d (%q) comes back as %d", checks, at, woven[at-1:], got)
			}
		}
	}
}

// inCheck reports whether a position of a woven text is in a check.
func inCheck(woven string, at int) bool {
	for i := max(0, at-len("SELECT check();")); i < at; i++ {
		if strings.HasPrefix(woven[i:], "SELECT check();") {
			return true
		}
	}
	return false
}

func TestWovenKeepsItsMemory(t *testing.T) {
	w := new(Woven)
	weave(w, []string{"A", "B"}, 0, 1)
	if n := testing.AllocsPerRun(100, func() {
		w.Reset()
		w.Put(0, 0, 3)
		w.NextResult()
		w.Ours()
		w.Position(2)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
