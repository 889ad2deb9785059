//go:build linux

package faulttest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/model"
)

// takeovers is the result of a run.
type takeovers struct {
	change     string
	moves      []move
	committed  int // rows on the survivor
	refused    int
	lost       int // rows that were acknowledged, and aren't there
	violations []string
}

func (j takeovers) String() string {
	text := fmt.Sprintf("%d writes committed, %d lost, %d refused", j.committed, j.lost, j.refused)
	for _, m := range j.moves {
		text += fmt.Sprintf("\npromoted after %.1f s, written after %.1f s, %.1f s without a write", seconds(m.promoted-m.struck), seconds(m.wrote-m.struck), m.silent.Seconds())
	}
	return text
}

func seconds(nanoseconds int64) float64 { return time.Duration(nanoseconds).Seconds() }

// judge compares the answers that the sidecars and the applications got with the data of
// the survivor. It counts the acknowledged rows that a change may lose, which fences do
// not prevent.
func (f *failover) judge(s *survivor) takeovers {
	h := &history{first: 1, attempts: f.grants(), commits: s.commits}
	there := map[string]fence.Token{}
	for _, c := range s.commits {
		there[c.row] = c.token
	}
	delete(there, "")
	j := takeovers{change: f.change.name, moves: f.moves, committed: len(there)}
	for _, a := range f.applications {
		for _, w := range a.writes {
			_, kept := there[w.id]
			switch {
			case w.writeOutcome == refused:
				j.refused++
			case w.writeOutcome == committed && !kept && f.change.loses:
				j.lost++
				continue
			}
			known := *w
			known.token = there[w.id]
			h.writes = append(h.writes, &known)
		}
	}
	run := func(name string, faults []string) {
		if more := len(faults) - 5; more > 0 {
			faults = append(faults[:5], fmt.Sprintf("and %d more", more))
		}
		if len(faults) > 0 {
			j.violations = append(j.violations, name+": "+strings.Join(faults, "; "))
		}
	}
	run("I1 monotone", monotone(h))
	run("I3 unique", unique(h))
	run("answers are true", answersAreTrue(h))
	run("I9 under the latest grant", s.underTheLatest(h.attempts))
	run(steps, stepsOfTheModel(f.walkGrants(s, h.attempts)))
	return j
}

// walkGrants walks the grants of which the survivor knows, behind all other steps.
func (f *failover) walkGrants(s *survivor, grants []*attempt) *history {
	err := s.cannotBe
	for _, g := range grants {
		known := func(c commit) bool { return c.row == "" && c.token == g.token }
		if err == nil && slices.ContainsFunc(s.commits, known) {
			err = f.steps.Told(model.Step{Kind: model.Granted, Actor: g.by, Resource: string(resource), Token: int64(g.token)}.String())
		}
	}
	// A hold that is given back is no kind that must be there: most end with their primary.
	kinds := []model.Kind{model.Wanted, model.Sealed, model.Granted, model.Checked, model.Held, model.Ran, model.Commits, model.Promoted}
	return &history{cannotBe: missing(f.steps, err, kinds...)}
}

// underTheLatest requires that each row was written by the application behind the sidecar that
// had the latest grant recorded before it.
func (s *survivor) underTheLatest(grants []*attempt) (faults []string) {
	holders := map[fence.Token]string{}
	for _, g := range grants {
		holders[g.token] = g.by
	}
	for i, c := range s.commits {
		if application, _, _ := strings.Cut(c.row, "."); c.row != "" && holders[c.token] != application {
			faults = append(faults, fmt.Sprintf("commit %d, of %s, has token %d, which was granted to %q", i, c.row, c.token, holders[c.token]))
		}
	}
	return faults
}

// Token 2 was granted to a, and 3 to b.
func TestSurvivorIsJudged(t *testing.T) {
	s := &survivor{commits: []commit{{token: 2, by: "a"}, {row: "a.1", token: 2}, {token: 3, by: "b"}, {row: "b.1", token: 3}}}
	grants := []*attempt{{by: "a", token: 2}, {by: "b", token: 3}}
	if faults := s.underTheLatest(grants); faults != nil {
		t.Error(faults)
	}
	s.commits[3].row = "a.2"
	if faults := s.underTheLatest(grants); len(faults) != 1 || !strings.Contains(faults[0], `granted to "b"`) {
		t.Errorf("another writes with the token, and found is %q", faults)
	}
}
