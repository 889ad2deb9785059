package fencingtest

import (
	"flag"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/rules"
)

var without = flag.String("without", ".", "which rules to take out for random traffic, as a regular expression; with -short none")

// Runs of random traffic find a stale row without a rule. The last rule needs a test: without it a
// busy session is refused what it may write. That a hold is judged in READ COMMITTED is none of the
// rules: a seal would have to commit within microseconds of a statement's snapshot. Nor is the
// refusal of PREPARE TRANSACTION: without it a seal fails before a row is stale.
// TestHoldsAreReadInReadCommitted and TestTwoPhaseCommit play both.
const (
	allowed  = "^TestNoStaleWriteUnderRandomTraffic$/^15_a_fence_is_allowed$"
	required = "^TestNoStaleWriteUnderRandomTraffic$/^15_a_fence_is_required$"
	unheld   = "^TestNoStaleWriteUnderRandomTraffic$/^15_no_holds$"
	newGuard = "^TestAGuardThatIsNewerThanAHold$"
)

// Without these no step of the traffic may be one of the model's, whatever becomes of its rows.
const (
	aheadOf   = "a check is ahead of its statement"
	givenBack = "a hold that was given back doesn't count"
)

// otherRuns are those that find what goes wrong without a rule; for the others it is allowed.
var otherRuns = map[string]string{
	aheadOf:                                                 unheld,
	givenBack:                                               required,
	"a check ends with its transaction":                     unheld,
	"a check ends with a SET":                               unheld,
	"a check of a batch ends with a SET":                    unheld,
	"check ahead of COMMIT":                                 unheld,
	"check ahead of COMMIT behind a SET":                    unheld,
	"check ahead of COMMIT under another fence":             unheld,
	"check ahead of COMMIT in a chain":                      unheld,
	"check ahead of COMMIT behind ROLLBACK TO":              unheld,
	"ROLLBACK TO brings a value back":                       unheld,
	"ROLLBACK TO brings a value back in the text of COMMIT": unheld,
	"RELEASE brings READ WRITE back":                        required,
	"check ahead of a SET with a constant of a domain":      unheld,
	"no hold counts behind a refusal":                       newGuard,
}

// simulated are those that only the simulation finds.
var simulated = []string{"a function call has a check of its transaction", "a session that was reset carries what it is set to"}

// TestRandomTrafficNeedsEachRule takes the rules out, one by one, and lets random traffic
// find a stale row. A rule whose text has changed fails the test, also with -short.
//
// Evidence: I5
func TestRandomTrafficNeedsEachRule(t *testing.T) {
	chosen := regexp.MustCompile(*without)
	for _, rule := range rules.All {
		t.Run(rule.Name, func(t *testing.T) {
			rule.TakeOut(t)
			if testing.Short() || !chosen.MatchString(rule.Name) || slices.Contains(simulated, rule.Name) {
				return
			}
			find := allowed
			if other, ok := otherRuns[rule.Name]; ok {
				find = other
			}
			binary := rule.Build(t)
			began := time.Now()
			run := exec.CommandContext(t.Context(), binary, "-test.run", find, "-test.v", "-traffic", "10m")
			out, err := run.CombinedOutput()
			want := ", then row"
			switch {
			case find == newGuard:
				want = "[behind the refusal]: got"
			case rule.Name == aheadOf || rule.Name == givenBack:
				want = "no check and no hold of"
			}
			if err == nil || !strings.Contains(string(out), want) {
				t.Fatalf("%q is not found in %s: %v\n%s", want, time.Since(began), err, out)
			}
			written, told := "", "none" // when the last row was, and the story that its session told then
			for line := range strings.Lines(string(out)) {
				line = strings.TrimSpace(line)
				switch row := strings.Contains(line, ", then row"); {
				case row || strings.Contains(line, "-seed") || strings.Contains(line, "it took"):
					if t.Log(line); row {
						written = line[strings.LastIndex(line, " ")+1:]
					}
				case line < written && strings.Contains(line, " tells "):
					told = line
				case line < written && strings.Contains(line, " has told"):
					told = "none"
				}
			}
			t.Log("story:", told)
		})
	}
}
