package model

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The protocol as it is has no schedule that breaks a property, and no state
// that nobody gets out of.
//
// Evidence: I1, I2, I3
func TestProtocolHolds(t *testing.T) {
	t.Parallel()
	found := search(t, "fence.pml", nil, "-O2")
	if found.violation != "" {
		t.Fatalf("%s; the shortest schedule that spin found:\n%s", found.violation, found.story)
	}
	wantNoIdleStep(t, found)
	t.Logf("%s states, none of them bad", found.states)
}

// Nor has it one where a standby takes over that lacks the last commits.
//
// Evidence: I9
func TestProtocolHoldsAcrossAPromotion(t *testing.T) {
	t.Parallel()
	found := search(t, "fence.pml", []string{"PROMOTION"}, "-O2")
	if found.violation != "" {
		t.Fatalf("%s; a schedule that spin found:\n%s", found.violation, found.story)
	}
	wantNoIdleStep(t, found)
	t.Logf("%s states, none of them bad", found.states)
}

// A protocol that lacks a part of it breaks the property that the part is for.
// Without that the proof above might be one of nothing.
func TestBrokenProtocolsAreCaught(t *testing.T) {
	t.Parallel()
	const (
		i1         = "assertion violated (committed<=token)"
		i2         = "assertion violated (returned<=token)"
		i3         = "assertion violated ((granted&(1<<token))==0)"
		invalidEnd = "invalid end state"
	)
	for _, broken := range []struct {
		name, violation string
		defines         []string
	}{
		{"no seal, a lower token commits after a return", i2, []string{"NOSEAL", "NO_I1", "NO_I3"}},
		{"no seal, a token is granted twice", i3, []string{"NOSEAL", "NO_I1", "NO_I2"}},
		{"no lock, tokens go down", i1, []string{"NOLOCK", "NO_I2", "NO_I3"}},
		{"no lock, a lower token commits after a return", i2, []string{"NOLOCK", "NO_I1", "NO_I3"}},
		{"a seal of an equal token, granted twice", i3, []string{"SEALEQUAL"}},
		{"a row counts on any server, granted twice", i3, []string{"PROMOTION", "NOIDENTITY", "NO_I1", "NO_I2"}},
		{"a row counts on any server, a lower token commits after a return", i2, []string{"PROMOTION", "NOIDENTITY", "NO_I1", "NO_I3"}},
		{"the next token is the last one's successor, granted twice", i3, []string{"PROMOTION", "NOJUMP", "NO_I1", "NO_I2"}},
		{"no preemption, a takeover waits for ever", invalidEnd, []string{"NOPREEMPT"}},
	} {
		t.Run(broken.name, func(t *testing.T) {
			t.Parallel()
			// Breadth first: the schedule that it finds is a shortest one.
			found := search(t, "fence.pml", broken.defines, "-O2", "-DBFS")
			if found.violation != broken.violation {
				t.Errorf("spin found %q in %s states, want %q", found.violation, found.states, broken.violation)
			}
			t.Logf("after %s states: %s\n%s", found.states, found.violation, found.story)
		})
	}
}

// wantNoIdleStep fails if the search came to no state from which some step is taken.
func wantNoIdleStep(t *testing.T, found outcome) {
	t.Helper()
	for _, line := range unreached.FindAllString(found.output, -1) {
		// Processes go on for ever, and assert(0) is where no step is to lead.
		if !strings.Contains(line, `"-end-"`) && !strings.Contains(line, `"assert(0)"`) {
			t.Errorf("the model has a step that is never taken: %s", strings.TrimSpace(line))
		}
	}
}

// outcome is what a search came to.
type outcome struct {
	states    string
	violation string // empty if there is none
	story     string // the steps that led to it, and the state at its end
	output    string
}

var (
	stored     = regexp.MustCompile(`(?m)^\s*(\d+) states, stored`)
	errorCount = regexp.MustCompile(`errors: (\d+)\n`)
	violations = regexp.MustCompile(`(?m)^pan:1: (.*) \(at depth \d+\)$`)
	unreached  = regexp.MustCompile(`(?m)^\t\w+\.pml:.*$`)
)

// search has spin look through all states of a model with the given defines, by a
// program that is compiled with the options. An error of the model ends it; anything
// that makes the search less than whole fails the test.
func search(t *testing.T, model string, defines []string, options ...string) outcome {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, model), text, 0o600); err != nil {
		t.Fatal(err)
	}
	var flags []string
	for _, define := range defines {
		flags = append(flags, "-D"+define)
	}
	run(t, dir, "spin", append(flags, "-a", model)...)
	memory, depth := "2048", "100000" // megabytes, steps
	if *deep {
		memory, depth = "6144", "20000000"
	}
	run(t, dir, "cc", append(options, "-w", "-DSAFETY", "-DMEMLIM="+memory, "-o", "pan", "pan.c")...)
	out := run(t, dir, "./pan", "-m"+depth)

	counts, errors := stored.FindStringSubmatch(out), errorCount.FindStringSubmatch(out)
	if counts == nil || errors == nil {
		t.Fatalf("pan's output isn't understood:\n%s", out)
	}
	found := outcome{states: counts[1], output: out}
	if errors[1] != "0" {
		violation := violations.FindStringSubmatch(out)
		if violation == nil {
			t.Fatalf("pan found errors, but doesn't say what:\n%s", out)
		}
		found.violation = violation[1]
		found.story = run(t, dir, "spin", append(flags, "-t", model)...)
		return found
	}
	for _, sign := range []string{"Search not completed", "max search depth too small", "reached -DMEMLIM", "out of memory"} {
		if strings.Contains(out, sign) {
			t.Fatalf("the search was not exhaustive: %s\n%s", sign, out)
		}
	}
	return found
}

// run returns what a command says. scripts/install-servers --all installs spin.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
