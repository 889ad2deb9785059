//go:build linux

package faulttest

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
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
	return j
}

// underTheLatest requires that each row has the token of the latest grant recorded before
// it on the same timeline, and was written by the application behind the sidecar of that
// grant; and that each recorded token exceeds all before it.
func (s *survivor) underTheLatest(grants []*attempt) (faults []string) {
	holders := map[fence.Token]string{}
	for _, g := range grants {
		holders[g.token] = g.by
	}
	latest, since := fence.Token(1), 1
	for i, c := range s.commits {
		timeline := s.timelines[i]
		switch application, _, _ := strings.Cut(c.row, "."); {
		case c.row == "" && c.token <= latest:
			faults = append(faults, fmt.Sprintf("commit %d records token %d behind %d", i, c.token, latest))
		case c.row == "":
			latest, since = c.token, timeline
		case c.token != latest:
			faults = append(faults, fmt.Sprintf("commit %d, of %s, has token %d; the latest is %d", i, c.row, c.token, latest))
		case timeline != since:
			faults = append(faults, fmt.Sprintf("commit %d, of %s, on timeline %d, has token %d of timeline %d", i, c.row, timeline, c.token, since))
		case holders[c.token] != application:
			faults = append(faults, fmt.Sprintf("commit %d, of %s, has token %d, which was granted to %q", i, c.row, c.token, holders[c.token]))
		}
	}
	return faults
}

// Token 2 was granted to a, and 3 to b before PostgreSQL failed over, where it recorded 4
// for a.
func TestSurvivorIsJudged(t *testing.T) {
	grants := []*attempt{{by: "a", token: 2}, {by: "b", token: 3}, {by: "a", token: 4}}
	type place struct {
		commit
		timeline int
	}
	seal := func(token fence.Token, by string, timeline int) place {
		return place{commit{token: token, by: by}, timeline}
	}
	row := func(id string, token fence.Token, timeline int) place {
		return place{commit{row: id, token: token}, timeline}
	}
	for _, c := range []struct {
		name  string
		order []place
		want  string // "" if all is well
	}{
		{"all is well", []place{seal(2, "a", 1), row("a.1", 2, 1), seal(3, "b", 1), row("b.1", 3, 1), seal(4, "a", 2), row("a.2", 4, 2)}, ""},
		{"a grant is lost", []place{seal(2, "a", 1), row("a.1", 2, 1), seal(4, "a", 2), row("a.2", 4, 2)}, ""},
		{"a write comes behind the newer grant", []place{seal(2, "a", 1), seal(3, "b", 1), row("a.1", 2, 1)}, "the latest is 3"},
		{"a token is lost and counts", []place{seal(2, "a", 1), row("b.1", 3, 2)}, "the latest is 2"},
		{"a token outlives the promotion", []place{seal(2, "a", 1), row("a.1", 2, 2)}, "of timeline 1"},
		{"another writes with the token", []place{seal(2, "a", 1), row("b.1", 2, 1)}, `granted to "a"`},
		{"a token is recorded twice", []place{seal(2, "a", 1), seal(2, "b", 2)}, "behind 2"},
		{"nothing was presented", []place{seal(2, "a", 1), row("a.1", 0, 1)}, "has token 0"},
	} {
		s := &survivor{timelines: map[int]int{}}
		for i, p := range c.order {
			s.commits = append(s.commits, p.commit)
			s.timelines[i] = p.timeline
		}
		found := strings.Join(s.underTheLatest(grants), "; ")
		if (found == "") != (c.want == "") || !strings.Contains(found, c.want) {
			t.Errorf("%s: found %q, want %q", c.name, found, c.want)
		}
	}
}

func TestPresentedTokensAreRead(t *testing.T) {
	at := "2026-11-22 22:26:39.626 UTC [29961] "
	presented := map[string]fence.Token{}
	readPresented(strings.Join([]string{
		at + "5.1 LOG:  execute <unnamed>: SELECT wirefence.hold($1)",
		at + "5.1 DETAIL:  parameters: $1 = 'orders=7'",
		at + "5.2 LOG:  statement: SELECT wirefence.check('orders=8');INSERT INTO journal (id) VALUES ( 'b.1' ) RETURNING timeline",
		at + "5.1 LOG:  execute stmt: INSERT INTO journal (id) VALUES ($1) RETURNING timeline",
		at + "5.1 DETAIL:  parameters: $1 = 'a.1'",
		at + "5.1 LOG:  statement: SELECT wirefence.unhold()",
		at + "5.1 LOG:  statement: INSERT INTO journal (id) VALUES ( 'a.2' ) RETURNING timeline",
		at + "5.3 ERROR:  stale fencing token for resource \"orders\"",
		at + "5.3 STATEMENT:  INSERT INTO journal (id) VALUES ( 'a.3' ) RETURNING timeline",
	}, "\n"), presented)
	want := map[string]fence.Token{"a.1": 7, "b.1": 8, "a.2": 0}
	if !maps.Equal(presented, want) {
		t.Errorf("read %v, want %v", presented, want)
	}
}
