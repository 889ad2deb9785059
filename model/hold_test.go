package model

import (
	"flag"
	"slices"
	"strings"
	"testing"
)

var deep = flag.Bool("deep", false, "search the large variants of hold.pml, too: one after another, up to 6 GB")

// Whatever a client, a proxy and the takeovers of hold.pml do, no stale write
// commits, and each takeover gets through.
func TestHoldsHold(t *testing.T) {
	t.Parallel()
	const everything = "BLOCKS SAVEPOINTS UNLOCKS SETS OWNSEALS"
	for _, variant := range []struct {
		name, defines string
		all           bool // each step of the model is to be taken
		large         bool
	}{
		{name: "stale writes, one session of many", defines: everything, all: true},
		{name: "stale writes, fences in comments", defines: "BLOCKS SETS UNLOCKS COMMENTS"},
		{name: "stale writes, a refused hold keeps its lock", defines: everything + " RAISE_KEEPS"},
		{name: "stale writes, two sessions", defines: "SESSIONS=2 PIPE=1 ROWS BLOCKS SYM"},
		{name: "takeovers with a preempt_after", defines: "LIVE PREEMPT " + everything},
		{name: "takeovers that end nobody's transaction", defines: "LIVE " + everything},
		{name: "takeovers, a refused hold keeps its lock", defines: "LIVE PREEMPT BLOCKS RAISE_KEEPS"},
		{name: "takeovers, two sessions with a preempt_after", defines: "SESSIONS=2 PIPE=1 ROWS BLOCKS SYM LIVE PREEMPT"},
		{name: "takeovers that end nobody's transaction, two sessions", defines: "SESSIONS=2 PIPE=1 ROWS BLOCKS SYM LIVE"},

		{name: "stale writes, everything", defines: everything + " COMMENTS", large: true},
		{name: "stale writes, three groups outstanding", defines: "PIPE=3 BLOCKS SAVEPOINTS UNLOCKS SETS", large: true},
		{name: "stale writes, two sessions with savepoints and unlocks", defines: "SESSIONS=2 PIPE=1 ROWS BLOCKS SAVEPOINTS UNLOCKS SYM", large: true},
		{name: "stale writes, two sessions that pipeline", defines: "SESSIONS=2 ROWS BLOCKS SYM", large: true},
	} {
		if variant.large && !*deep {
			continue
		}
		t.Run(variant.name, func(t *testing.T) {
			if !variant.large {
				t.Parallel()
			}
			// Without spin's partial order reduction: nearly all that a step touches is
			// everybody's, and steps are large.
			found := search(t, "hold.pml", strings.Fields(variant.defines), "-O1", "-DNOREDUCE", "-DCOLLAPSE")
			if found.violation != "" {
				t.Fatalf("%s; the schedule:\n%s", found.violation, found.story)
			}
			if variant.all {
				wantNoIdleStep(t, found)
			}
			t.Logf("%s states, none of them bad", found.states)
		})
	}
}

// Each rule is needed: without it some schedule ends in a stale write, or in a
// takeover that never gets through. migrations/holdrules_test.go plays the former.
func TestRulesOfHoldsAreNeeded(t *testing.T) {
	t.Parallel()
	staleWrites := []string{"assertion violated (top[i]!=2)", "assertion violated (sub[i]!=2)", "assertion violated (prepared[i]!=2)"}
	const (
		workForEver = "assertion violated (work[i]<=3)"
		nobodyMoves = "invalid end state"
	)
	for _, broken := range []struct{ name, defines, violation string }{
		{"a group counts on a hold that has no answer", "BLOCKS COUNTS_AT_ONCE", ""},
		{"a hold that failed counts", "BLOCKS FAILURE_COUNTS", ""},
		{"a hold counts until the answer to unhold", "BLOCKS COUNTS_TO_THE_END", ""},
		{"given back in a transaction", "BLOCKS BACK_INSIDE", ""},
		{"given back behind groups without an answer", "BLOCKS BACK_BEHIND", ""},
		{"taken anew in a transaction", "BLOCKS SETS RETAKE_INSIDE", ""},
		{"taken anew behind groups without an answer", "BLOCKS RETAKE_BEHIND", ""},
		{"no check ahead of SAVEPOINT", "BLOCKS SAVEPOINTS UNLOCKS SAVEPOINT_BARE", ""},
		{"no check ahead of a text that unlocks", "BLOCKS UNLOCKS UNLOCK_BARE", ""},
		{"a hold counts behind a text that unlocks", "BLOCKS UNLOCKS UNLOCK_COUNTS", ""},
		{"a hold counts whose answer comes behind that text", "BLOCKS UNLOCKS UNLOCK_UNSPOILED", ""},
		{"a session holds though an unlock has a name", "BLOCKS UNLOCKS NAME_HOLDS", ""},
		{"a hold counts behind a text that changes the variable", "BLOCKS SETS SET_COUNTS", ""},
		{"a hold counts whose answer comes behind a change of the variable", "BLOCKS SETS SET_UNSPOILED", ""},
		{"a group with another fence counts on the hold", "BLOCKS COMMENTS OTHER_FENCE", ""},
		{"a hold's verdict is read by a snapshot that is older than its lock", "BLOCKS SNAPSHOT", ""},
		{"a session takes over from itself", "BLOCKS OWNSEALS OWN_LOCK", ""},
		{"PREPARE TRANSACTION under a hold", "BLOCKS PREPARE_HELD", ""},

		{"taken anew without giving back first", "LIVE BLOCKS KEEPS_LOCK", workForEver},
		{"checks go on over a hold that doesn't count", "LIVE BLOCKS STICKY_CHECK", workForEver},
		{"a client that pipelines isn't held back", "LIVE BLOCKS NO_PAUSE", workForEver},
		{"a hold that failed isn't given back", "LIVE BLOCKS FORGETS", nobodyMoves},
		{"nothing is given back without a next group", "LIVE BLOCKS NO_TIMER", nobodyMoves},
		{"an idle holder isn't ended", "LIVE BLOCKS NO_IDLE_END", nobodyMoves},
		{"a proxy freezes in a transaction, and preempt_after is never", "LIVE BLOCKS FREEZE_INSIDE", nobodyMoves},
	} {
		t.Run(broken.name, func(t *testing.T) {
			t.Parallel()
			options := []string{"-O0", "-DNOREDUCE"}
			if broken.violation == "" {
				// Breadth first: the schedule that it finds is a shortest one.
				options = append(options, "-DBFS")
			}
			found := search(t, "hold.pml", strings.Fields(broken.defines), options...)
			if broken.violation == "" && !slices.Contains(staleWrites, found.violation) || broken.violation != "" && found.violation != broken.violation {
				t.Errorf("spin found %q in %s states, want %q", found.violation, found.states, broken.violation)
			}
			t.Logf("after %s states: %s\n%s", found.states, found.violation, found.story)
		})
	}
}
