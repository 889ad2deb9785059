//go:build linux

package faulttest

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// handover is a history without a violation: a is granted token 2 and writes x; b is
// granted 3, sees x and writes y; a's z is refused. The outcomes of a's u and b's v are
// unknown; u is committed. Token 4 is sealed for a grant that c never got.
func handover() *history {
	return &history{
		first: 1,
		attempts: []*attempt{
			{by: "a.1", call: 10, ret: 20, token: 2, rows: 0, lastHeld: 40},
			{by: "b.1", lane: 1, call: 15, ret: 60, token: 3, rows: 2, lastHeld: 90},
			{by: "c.1", lane: 2, call: 70, failure: "killed", rows: -1},
		},
		writes: []*write{
			{id: "x", token: 2, call: 30, ret: 45, writeOutcome: committed},
			{id: "u", token: 2, call: 46, writeOutcome: unknown},
			{id: "y", lane: 1, token: 3, call: 61, ret: 65, writeOutcome: committed},
			{id: "z", token: 2, call: 50, ret: 70, writeOutcome: refused, current: 3},
			{id: "v", lane: 1, token: 3, call: 80, writeOutcome: unknown},
		},
		commits: []commit{
			{token: 2, by: "a.1"}, {row: "x", token: 2}, {row: "u", token: 2},
			{token: 3, by: "b.1"}, {row: "y", token: 3}, {token: 4, by: "c.1"},
		},
	}
}

func TestHistoryIsJudged(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*history)
		want   []string // the checks that must find something
	}{
		{"all is well", func(*history) {}, nil},
		{"an older token is granted behind a newer one", func(h *history) {
			h.attempts = append(h.attempts, &attempt{by: "d.1", call: 61, ret: 66, token: 2, rows: 0, lastHeld: 66})
		}, []string{"linearizable", "I3 unique", "sealed before it is granted", "exclusive"}},
		{"a grant that took its time is before the other", func(h *history) {
			h.attempts[0].ret, h.attempts[0].lastHeld = 65, 65
			h.attempts[1].lastHeld = 60
			h.writes[0].call, h.writes[0].writeOutcome, h.writes[0].ret = 66, unknown, 0
			h.writes = slices.Delete(h.writes, 0, 1)
			h.commits = slices.Delete(h.commits, 1, 2)
			h.attempts[1].rows = 1
		}, nil},
		{"a write comes through behind the newer grant", func(h *history) {
			h.writes = append(h.writes, &write{id: "late", token: 2, call: 67, ret: 69, writeOutcome: committed})
			h.commits = append(h.commits, commit{row: "late", token: 2})
		}, []string{"linearizable", "I1 monotone", "I2 sealed handoff"}},
		{"so does one of which its client knows nothing", func(h *history) {
			h.writes = append(h.writes, &write{id: "late", token: 2, call: 67, writeOutcome: unknown})
			h.commits = append(h.commits, commit{row: "late", token: 2})
		}, []string{"linearizable", "I1 monotone", "I2 sealed handoff"}},
		{"a write that was called in time is committed too late", func(h *history) {
			h.commits[2], h.commits[4] = h.commits[4], h.commits[2]
		}, []string{"I1 monotone"}},
		{"the new holder doesn't see what was committed", func(h *history) { h.attempts[1].rows = 1 }, []string{"I2 sealed handoff"}},
		{"a grant is not sealed", func(h *history) { h.commits = slices.Delete(h.commits, 3, 4) }, []string{"sealed before it is granted"}},
		{"a grant is sealed for another", func(h *history) { h.commits[3].by = "c.1" }, []string{"linearizable", "sealed before it is granted"}},
		{"a refusal names a token that nobody has yet", func(h *history) {
			h.writes[3].current = 4
			h.attempts[2].call = 71
		}, []string{"linearizable"}},
		{"a refusal while the token is the current one", func(h *history) {
			h.writes[3].call, h.writes[3].ret = 41, 44
			h.attempts[1].call = 46
			h.writes[3].current = 2
		}, []string{"linearizable"}},
		{"a refusal names what an operator revoked", func(h *history) {
			h.writes[3].current = 4
			h.commits[5].by = ""
			h.revocations = []revocation{{token: 4, call: 66, ret: 68}}
		}, nil},
		{"a refusal names what was not revoked yet", func(h *history) {
			h.writes[3].current = 4
			h.commits[5].by = ""
			h.revocations = []revocation{{token: 4, call: 71, ret: 72}}
		}, []string{"linearizable"}},
		{"a token that was granted is unknown", func(h *history) { h.writes[4].writeOutcome = misjudged }, []string{"answers are true"}},
		{"what was acknowledged is gone", func(h *history) {
			h.commits = slices.Delete(h.commits, 1, 2)
			h.attempts[1].rows = 1
		}, []string{"answers are true"}},
		{"what was refused is committed", func(h *history) {
			h.commits = slices.Insert(h.commits, 1, commit{row: "z", token: 2})
			h.attempts[1].rows = 3
		}, []string{"answers are true"}},
		{"a row has another token", func(h *history) { h.commits[4].token = 4 }, []string{"answers are true"}},
		{"a row comes twice", func(h *history) {
			h.commits = append(h.commits, commit{row: "y", token: 3})
		}, []string{"answers are true"}},
		{"a row comes from nowhere", func(h *history) {
			h.commits = append(h.commits, commit{row: "w", token: 5})
		}, []string{"answers are true"}},
		{"two hold the lease", func(h *history) { h.attempts[0].lastHeld = 61 }, []string{"exclusive"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := handover()
			c.change(h)
			var found []string
			for _, violation := range violations(h, true) {
				name, _, _ := strings.Cut(violation, ":")
				found = append(found, name)
			}
			if !slices.Equal(found, c.want) {
				t.Errorf("found %q, want %q: %q", found, c.want, violations(h, true))
			}
		})
	}
}

// The checks find each defect of a client.
func TestDefectsAreFound(t *testing.T) {
	for _, c := range []struct {
		defect defect
		kind   string
		fault  string
		want   []string
		holds  []string
	}{
		{unsealed, "Redis", "flushed", []string{"linearizable", "I3 unique", "sealed before it is granted"}, nil},
		{unsealed, "two Redis", "split brain", []string{"linearizable", "I3 unique", "sealed before it is granted"}, nil},
		{unchecked, "Redis", nothing.name, []string{"linearizable", "I1 monotone", "I2 sealed handoff", steps}, []string{"I3 unique", "exclusive"}},
		{doubleGrant, "Redis", nothing.name, []string{"exclusive"}, []string{"linearizable", "I1 monotone", "I2 sealed handoff", "I3 unique", steps}},
		{sealsEarly, "Redis", nothing.name, []string{steps}, []string{"I3 unique", "exclusive"}},
		{jumpsByOne, patroni, changes[0].name, []string{steps}, nil},
	} {
		t.Run(strings.ReplaceAll(string(c.defect)+"/"+c.kind, " ", "_"), func(t *testing.T) {
			t.Parallel()
			run := func(s uint64) []string { return runChange(t, changes[0], c.defect).violations }
			if c.kind != patroni {
				k, f := find(t, c.kind, c.fault)
				run = func(s uint64) []string {
					h, err := open(t, k, f, c.defect, s).run(t.Context(), 2*time.Second)
					if err != nil {
						t.Fatal(err)
					}
					return violations(h, true)
				}
			}
			found := map[string]bool{}
			missing := func(name string) bool { return !found[name] }
			// A defect has to meet a client that shows it, which on a busy machine takes
			// more than one run.
			for n := 0; n < 10 && slices.ContainsFunc(c.want, missing); n++ {
				s := theSeed() + uint64(n)
				t.Logf("-seed %d", s)
				for _, violation := range run(s) {
					t.Log(violation)
					name, _, _ := strings.Cut(violation, ":")
					found[name] = true
				}
			}
			for _, name := range c.want {
				if missing(name) {
					t.Errorf("%s was not found to be violated", name)
				}
			}
			for _, name := range c.holds {
				if found[name] {
					t.Errorf("%s should hold nevertheless", name)
				}
			}
		})
	}
}

func find(t *testing.T, kindName, faultName string) (kind, fault) {
	t.Helper()
	for _, k := range kinds {
		for _, f := range k.faults {
			if k.name == kindName && f.name == faultName {
				return k, f
			}
		}
	}
	t.Fatalf("%s has no fault %q", kindName, faultName)
	return kind{}, fault{}
}
