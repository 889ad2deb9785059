//go:build linux

package faulttest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/model"
)

// checks are the invariants of every history. Each returns the violations that it finds.
var checks = []struct {
	name  string
	check func(*history) []string
}{
	{"linearizable", linearizable},
	{"I1 monotone", monotone},
	{"I2 sealed handoff", sealedHandoff},
	{"I3 unique", unique},
	{"sealed before it is granted", sealedFirst},
	{"answers are true", answersAreTrue},
	{steps, stepsOfTheModel},
}

const steps = "steps of the model"

// missing says which kinds of steps there are none of, unless a step is wrong.
func missing(s *stack.Steps, wrong error, kinds ...model.Kind) error {
	if none := s.Missing(kinds...); wrong == nil && len(none) > 0 {
		return fmt.Errorf("no step is %v", none)
	}
	return wrong
}

// stepsOfTheModel finds the first check, hold, takeover, write or commit that the model hasn't.
func stepsOfTheModel(h *history) []string {
	if h.cannotBe == nil {
		return nil
	}
	return []string{h.cannotBe.Error()}
}

// monotone compares the tokens of the journal's rows in commit order, which PostgreSQL
// reports by logical decoding.
func monotone(h *history) (faults []string) {
	highest := h.first
	for i, c := range h.commits {
		if c.row == "" {
			continue
		}
		if c.token < highest {
			faults = append(faults, fmt.Sprintf("commit %d, of %s, has token %d behind %d", i, c.row, c.token, highest))
		}
		highest = max(highest, c.token)
	}
	return faults
}

// sealedHandoff compares the rows of older tokens that each new holder saw with those
// that exist in the end: a further row was committed after the grant, or was invisible to
// the holder. Neither may happen.
func sealedHandoff(h *history) (faults []string) {
	for _, a := range h.grants() {
		if a.rows < 0 {
			continue // it died before it looked, or couldn't
		}
		var rows int64
		for _, c := range h.commits {
			if c.row != "" && c.token < a.token {
				rows++
			}
		}
		if rows != a.rows {
			faults = append(faults, fmt.Sprintf("%s was granted token %d and saw %d rows of older ones; there are %d", a.by, a.token, a.rows, rows))
		}
	}
	return faults
}

func unique(h *history) (faults []string) {
	owners := map[fence.Token]string{h.first: "the test"}
	for _, a := range h.grants() {
		if owner, taken := owners[a.token]; taken {
			faults = append(faults, fmt.Sprintf("token %d was granted to %s and to %s", a.token, owner, a.by))
		}
		owners[a.token] = a.by
	}
	return faults
}

// sealedFirst requires that each granted token was recorded for exactly the attempt that
// got it.
func sealedFirst(h *history) (faults []string) {
	sealed := map[fence.Token]string{}
	for _, c := range h.commits {
		if c.row == "" {
			sealed[c.token] = c.by
		}
	}
	for _, a := range h.grants() {
		if by, ok := sealed[a.token]; !ok || by != a.by {
			faults = append(faults, fmt.Sprintf("token %d was granted to %s, and is sealed for %q", a.token, a.by, by))
		}
	}
	return faults
}

// answersAreTrue compares the answers to the clients with the journal.
func answersAreTrue(h *history) (faults []string) {
	tokens := map[string]fence.Token{}
	for _, c := range h.commits {
		if c.row == "" {
			continue
		}
		if _, twice := tokens[c.row]; twice {
			faults = append(faults, fmt.Sprintf("%s is committed twice", c.row))
		}
		tokens[c.row] = c.token
	}
	for _, w := range h.writes {
		token, there := tokens[w.id]
		delete(tokens, w.id)
		switch {
		case w.writeOutcome == committed && !there:
			faults = append(faults, fmt.Sprintf("%s was said to be committed, and isn't", w.id))
		case w.writeOutcome == refused && there:
			faults = append(faults, fmt.Sprintf("%s was refused, and is committed", w.id))
		case w.writeOutcome == misjudged:
			faults = append(faults, fmt.Sprintf("%s with token %d was refused: %s", w.id, w.token, w.failure))
		case there && token != w.token:
			faults = append(faults, fmt.Sprintf("%s has token %d in the journal, not %d", w.id, token, w.token))
		}
	}
	for id := range tokens {
		faults = append(faults, fmt.Sprintf("%s is committed, and nobody wrote it", id))
	}
	return faults
}

// exclusive requires that no two clients hold the lease at once by their own deadlines.
// Wirefence promises that only for a store that loses nothing: otherwise two may believe
// that they hold it, and only one may write.
func exclusive(h *history) (faults []string) {
	holds := h.grants()
	slices.SortFunc(holds, func(a, b *attempt) int { return cmp.Compare(a.ret, b.ret) })
	for i, a := range holds {
		for _, b := range holds[i+1:] {
			if b.ret < a.lastHeld {
				faults = append(faults, fmt.Sprintf("%s had the lease with token %d until %d µs after %s got it with %d",
					a.by, a.token, (a.lastHeld-b.ret)/1000, b.by, b.token))
			}
		}
	}
	return faults
}

// violations returns the results of all checks; it truncates the results of each.
func violations(h *history, keepsMemory bool) (all []string) {
	run := func(name string, check func(*history) []string) {
		faults := check(h)
		if more := len(faults) - 5; more > 0 {
			faults = append(faults[:5], fmt.Sprintf("and %d more", more))
		}
		if len(faults) > 0 {
			all = append(all, name+": "+strings.Join(faults, "; "))
		}
	}
	for _, c := range checks {
		run(c.name, c.check)
	}
	if keepsMemory {
		run("exclusive", exclusive)
	}
	return all
}
