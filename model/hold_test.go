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
//
// Evidence: I1, I2, I7
func TestHoldsHold(t *testing.T) {
	t.Parallel()
	const everything = "BLOCKS SAVEPOINTS UNLOCKS SETS OWNSEALS"
	for _, variant := range []struct {
		name, defines string
		all           bool // each step of the model is to be taken
		large         bool
	}{
		{name: "stale writes, one session of many", defines: everything},
		{name: "stale writes, fences in comments", defines: "BLOCKS SETS UNLOCKS COMMENTS"},
		{name: "stale writes, chained transactions", defines: everything + " CHAINS", all: true},
		{name: "stale writes, a refused hold keeps its lock", defines: everything + " RAISE_KEEPS"},
		{name: "stale writes, two sessions", defines: "SESSIONS=2 PIPE=1 ROWS BLOCKS SYM"},
		{name: "takeovers with a preempt_after", defines: "LIVE PREEMPT " + everything},
		{name: "takeovers that end nobody's transaction", defines: "LIVE " + everything},
		{name: "takeovers, a refused hold keeps its lock", defines: "LIVE PREEMPT BLOCKS RAISE_KEEPS"},
		{name: "takeovers, chained transactions", defines: "LIVE PREEMPT BLOCKS CHAINS MOST=5"},
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
		{"a session that chains transactions keeps its hold", "LIVE BLOCKS CHAINS MOST=9 CHAIN_HOLDS", "assertion violated (work[i]<=9)"},
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

// Two proxies in a row, and the client itself, hold in one backend under marks of their own.
//
// Evidence: I2
func TestHoldsOfSeveralParties(t *testing.T) {
	t.Parallel()
	const (
		staleWrite  = "assertion violated (wrote!=2)"
		unrecorded  = "assertion violated (wrote!=3)"
		workForEver = "assertion violated (work<=2)"
		refused     = "assertion violated ((ok||(variable==2))|| !((tx==0)))"
	)
	searchEach(t, "chain.pml", []variant{
		{"two proxies", "", ""},
		{"one proxy", "ONE_PROXY", ""},

		{"one mark for all", "ONE_MARK", staleWrite},
		{"a session seals under another party's mark", "OWN_MARKS_ONLY", staleWrite},
		{"the lock is unlocked, and its mark behind a cancel", "LEVEL_FIRST", staleWrite},
		{"the mark is unlocked, and its lock behind a cancel", "TORN", workForEver},
		{"the far proxy holds while the near one takes its hold anew", "PASSES_ON", workForEver},
		{"the far proxy puts a check ahead of the near one's exchange", "CHECK_AHEAD", refused},
		{"a hold counts before its record is committed", "ONE_PROXY ROW_COUNTS", unrecorded},
	})
}

// A hold lasts until somebody wants it: how long that keeps a takeover out, and whom a
// takeover ends.
//
// Evidence: I7
func TestHoldsLast(t *testing.T) {
	t.Parallel()
	const (
		late    = "assertion violated ((frozen||missed)||(known<=9))"
		tooLong = "assertion violated (known<=20)"
		ended   = "assertion violated frozen"
	)
	searchEach(t, "lasting.pml", []variant{
		{"live proxies", "", ""},
		{"proxies that freeze", "FREEZE", ""},
		{"the wanted key isn't available at first", "KEY_MISSED", ""},
		{"both", "FREEZE KEY_MISSED THREE_LOOKS", ""},
		{"one way takes 75 ms", "WAY=3 SOON=17", ""},

		{"an answer proves what was so when it came", "ARRIVAL", late},
		{"a hold lasts without a proof", "UNPROVEN", late},
		{"an idle session without a proof keeps its hold", "IDLE_SECOND SOON=99", ended},
		{"holds last at a round trip of 200 ms", "WAY=4 SOON=99", ended},
		{"only who is idle since the takeover came is ended", "FREEZE IDLE_BEFORE", tooLong},
		{"the second look comes after 400 ms", "FREEZE SECOND=16", "assertion violated (known<=16)"},
		{"the wanted key is taken once", "KEY_MISSED KEY_ONCE", tooLong},
		{"idle holders are ended by a takeover that they couldn't know of", "KEY_MISSED IDLE_KEYLESS", ended},
	})
}

// variant is a model with some defines, and what is to be found in it: nothing, or the
// violation of a variant that lacks a rule.
type variant struct{ name, defines, violation string }

func searchEach(t *testing.T, model string, variants []variant) {
	t.Helper()
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			options := []string{"-O1", "-DNOREDUCE"}
			if v.violation != "" {
				// Breadth first: the schedule that it finds is a shortest one.
				options = append(options, "-DBFS")
			}
			found := search(t, model, strings.Fields(v.defines), options...)
			if found.violation != v.violation {
				t.Errorf("spin found %q in %s states, want %q", found.violation, found.states, v.violation)
			}
			t.Logf("after %s states: %s\n%s", found.states, found.violation, found.story)
		})
	}
}
