package model

import (
	"slices"
	"strings"
	"testing"
)

// handoff is a run in which t1 and t2 acquire a resource, and a session of each writes.
const handoff = `
wanted t1 orders 1 0
sealed t1 orders 1 0
granted t1 orders 1 0
checked s1 orders 1 0
ran s1 orders 1 0
commits s1 orders 1 10
ended s1 - 0 0
held s1 orders 1 0
wanted t2 orders 2 0
ran s1 orders 1 0
commits s1 orders 1 20
ended s1 - 0 0
unheld s1 orders 1 0
sealed t2 orders 2 0
granted t2 orders 2 0
held s2 orders 2 0
ran s2 orders 2 0
commits s2 orders 2 30
gone s2 - 0 0
promoted - orders 1 18
wanted t1 orders 8589934592 0
sealed t1 orders 8589934592 0
granted t1 orders 8589934592 0
`

func walk(t *testing.T, trace string) (w Walk, wrong error) {
	t.Helper()
	for line := range strings.Lines(strings.TrimSpace(trace)) {
		s, err := ParseStep(line)
		if err != nil {
			t.Fatal(err)
		}
		if s.String() != strings.TrimSpace(line) {
			t.Errorf("%q is told as %q", line, s)
		}
		if err := w.Step(s); err != nil {
			return w, err
		}
	}
	return w, nil
}

func TestWalkAcceptsAHandoff(t *testing.T) {
	t.Parallel()
	w, wrong := walk(t, handoff)
	if wrong != nil {
		t.Error(wrong)
	}
	if missing := w.Missing(Wanted, Sealed, Granted, Checked, Held, Unheld, Ran, Commits, Promoted, Refused, Undone); !slices.Equal(missing, []Kind{Refused, Undone}) {
		t.Errorf("of %v there is no step", missing)
	}
}

func TestWalkNamesTheFirstStepThatCannotBe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ old, new, at string }{
		"a seal that returns early":                      {"unheld s1 orders 1 0\nsealed t2 orders 2 0\n", "sealed t2 orders 2 0\nunheld s1 orders 1 0\n", "sealed t2 orders 2 0: s1 has the lock"},
		"a seal beside a check":                          {"commits s1 orders 1 10\nended", "wanted t2 orders 2 0\nsealed t2 orders 2 0\nended", "sealed t2 orders 2 0: s1 has the lock"},
		"a seal that nobody was told of":                 {"wanted t2 orders 2 0\n", "", "sealed t2 orders 2 0: t2 has not announced"},
		"a hold that is counted after it was given back": {"ran s1 orders 1 0\ncommits s1 orders 1 20\nended s1 - 0 0\nunheld s1 orders 1 0\n", "unheld s1 orders 1 0\nran s1 orders 1 0\n", "ran s1 orders 1 0: no check"},
		"a check behind the write":                       {"checked s1 orders 1 0\nran s1 orders 1 0\n", "ran s1 orders 1 0\nchecked s1 orders 1 0\n", "ran s1 orders 1 0: no check"},
		"a check that outlives its transaction":          {"held s1 orders 1 0\n", "", "ran s1 orders 1 0: no check"},
		"a token that jumps by one behind a promotion":   {"8589934592", "3", "sealed t1 orders 3 0: the last token is 1"},
		"a token that is granted twice":                  {"granted t2 orders 2 0", "granted t2 orders 2 0\ngranted t2 orders 2 0", "granted t2 orders 2 0: it is granted twice"},
		"a grant without a seal":                         {"sealed t2 orders 2 0\n", "", "granted t2 orders 2 0: t2 has not sealed"},
		"a seal of the same token":                       {"orders 2 0", "orders 1 0", "sealed t2 orders 1 0"},
		"a stale token that passes":                      {"held s2 orders 2 0", "held s2 orders 1 0", "held s2 orders 1 0: the last token is 2"},
		"a token that passes behind a promotion":         {"promoted - orders 1 18\n", "promoted - orders 2 18\nchecked s3 orders 2 0\n", "checked s3 orders 2 0: it was sealed before a promotion"},
		"a commit whose lock is gone":                    {"commits s1 orders 1 20\nended s1 - 0 0\nunheld s1 orders 1 0\n", "unheld s1 orders 1 0\ncommits s1 orders 1 20\n", "commits s1 orders 1 20: no check"},
		"a commit under a stale token":                   {"commits s2 orders 2 30", "commits s2 orders 1 30", "commits s2 orders 1 30: the last token is 2"},
		"a commit ahead of one that came before":         {"2 30", "2 1F", "commits s2 orders 2 1F: the commit before it is at 20"},
		"a hold that is given back twice":                {"unheld s1 orders 1 0\n", "unheld s1 orders 1 0\nunheld s1 orders 1 0\n", "unheld s1 orders 1 0: s1 doesn't have it"},
		"a lost token that is sealed again":              {"8589934592", "2", "sealed t1 orders 2 0: t2 has sealed it before"},
		"a step of another kind":                         {"ran s2", "run s2", "run s2 orders 2 0: no such kind"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trace := strings.ReplaceAll(handoff, c.old, c.new)
			if trace == handoff {
				t.Fatalf("the run has no %q", c.old)
			}
			if _, wrong := walk(t, trace); wrong == nil || !strings.HasPrefix(wrong.Error(), c.at) {
				t.Errorf("the walk says %v, want %q", wrong, c.at)
			}
		})
	}
	for _, line := range []string{"", "ran s1 orders 1", "ran s1 orders one 0", "ran s1 orders 1 xyz"} {
		if s, err := ParseStep(line); err == nil {
			t.Errorf("%q is read as %v", line, s)
		}
	}
}
