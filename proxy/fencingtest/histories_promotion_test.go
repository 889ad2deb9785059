package fencingtest

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
)

// jump is below each token that a promoted server grants, and above each that was granted before.
const jump = 1 << 32

// The standby's network breaks until commits wait for it, if replication is synchronous, or until it
// lacks some; then it is promoted, while the old primary goes on with its holders. Each server's list
// has the order of its commits. The new one begins with a beginning of the old one; it has all that
// was acknowledged there before, if replication is synchronous; and nothing under an older token comes
// behind.
//
// Evidence: I1, I2, I5, I9
func TestHistoriesAcrossAPromotion(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "17 s of CPU")
	for _, synchronous := range []bool{false, true} {
		name := map[bool]string{false: "asynchronous", true: "synchronous"}[synchronous]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for begun, round := time.Now(), uint64(0); round == 0 || time.Since(begun) < trafficLength() && !t.Failed(); round++ {
				t.Run("promotion", func(t *testing.T) { historyAcrossAPromotion(t, synchronous, round) })
			}
		})
	}
}

func historyAcrossAPromotion(t *testing.T, synchronous bool, round uint64) {
	versions := stack.Some(t, oldAndNew)
	primary, standby := withStandby(t, versions[int(round)%len(versions)])
	seed := listSeed(t) + round
	r := rand.New(rand.NewPCG(seed, 98))
	l := &lists{primary: primary, standby: standby}
	l.create(t)
	if synchronous {
		primary.Exec(t, "alter system set synchronous_standby_names = 'standby'", "select pg_reload_conf()")
		t.Cleanup(func() { // before the database is dropped
			primary.Exec(t, "alter system reset synchronous_standby_names", "select pg_reload_conf()")
		})
	}
	l.promoting = func(l *lists) {
		for range 1 + r.IntN(5) {
			link := standby.follows
			link.Restore()
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
			if synchronous {
				[]func(){link.Cut, link.Hold, link.HoldAnswers, link.HoldRequests}[r.IntN(4)]()
				stack.Eventually(t, "a commit waits", func() bool {
					return stack.Value[bool](t, primary.DB, "select exists (select from pg_stat_activity where wait_event = 'SyncRep')")
				})
			} else {
				[]func(){link.Cut, link.Hold, link.HoldAnswers}[r.IntN(3)]()
				stack.Eventually(t, "the standby lacks something", func() bool {
					const length = "select cardinality(items) from list"
					return stack.Value[int](t, standby.DB, length) < stack.Value[int](t, primary.DB, length)
				})
			}
		}
		if err := standby.Promote(t.Context()); err != nil {
			t.Error(err)
		}
		if r.IntN(2) == 0 {
			standby.follows.Restore()
		}
	}
	l.play(t, "", min(max(trafficLength(), 5*time.Second), 20*time.Second), seed)
	old, list := stack.Value[[]string](t, primary.DB, "select items from list"), stack.Value[[]string](t, standby.DB, "select items from list")
	kept, lost, faults := judgePromotion(old, list, l.appends, l.reads, synchronous)
	t.Logf("%d items of the old primary, of which %d are kept and %d acknowledged ones lost; %d of the new one: %v", len(old), kept, lost, len(list), l.counts)
	if faults != nil {
		t.Error(strings.Join(faults, "\n"))
	}
}

// judgePromotion judges the lists of an old primary and of the new one. Of the old one's items the
// new one has kept so many.
func judgePromotion(old, list []string, appends []appended, reads []seen, synchronous bool) (kept, lost int, faults []string) {
	var oldAppends, newAppends []appended
	for _, a := range appends {
		if a.token < jump {
			oldAppends = append(oldAppends, a)
			if slices.Contains(list, a.item) {
				kept++
			} else if a.fate == committed && !synchronous {
				a.fate = unknown
				lost++
			}
		}
		newAppends = append(newAppends, a)
	}
	var oldReads, newReads []seen
	for _, r := range reads {
		if r.token == 0 || r.token >= jump {
			newReads = append(newReads, r)
		} else {
			oldReads = append(oldReads, r)
		}
	}
	for _, fault := range judgeList(old, oldAppends, oldReads) {
		faults = append(faults, "at the old primary "+fault)
	}
	if kept > len(old) || kept > len(list) || !slices.Equal(old[:kept], list[:kept]) {
		faults = append(faults, "the new primary's list doesn't begin as the old one's")
	}
	for _, fault := range judgeList(list, newAppends, newReads) {
		faults = append(faults, "at the new primary "+fault)
	}
	return kept, lost, faults
}

// A promotion that loses the old primary's a2, and one change of it for each fault.
func TestListsAcrossAPromotionAreJudged(t *testing.T) {
	good := []appended{{"a", "a1", 2, committed}, {"a", "a2", 2, committed}, {"b", "b1", jump, committed}}
	for _, c := range []struct {
		old, list   string
		synchronous bool
		want        string
	}{
		{"a1 a2", "a1 b1", false, ""},
		{"a1 a2", "a1 a2 b1", true, ""},
		{"a1 a2", "a1 b1", true, "at the new primary a2 is lost"},
		{"a1", "a1 b1", false, "at the old primary a2 is lost"},
		{"a1 a2", "a1", false, "at the new primary b1 is lost"},
		{"a1 a2", "a2 b1", false, "doesn't begin as the old one's"},
		{"a1 a2", "a1 b1 a2", false, "a2 comes behind b1"},
	} {
		_, _, faults := judgePromotion(strings.Fields(c.old), strings.Fields(c.list), good, nil, c.synchronous)
		if found := strings.Join(faults, "; "); (found == "") != (c.want == "") || !strings.Contains(found, c.want) {
			t.Errorf("%s, %s: found %q, want %q", c.old, c.list, found, c.want)
		}
	}
}
