package drivertest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// carrier is how a session's fence travels.
type carrier string

const (
	none      carrier = "none"
	byOptions carrier = "options" // a startup parameter, as PGOPTIONS
	bySet     carrier = "SET"     // the session's first statement
	byComment carrier = "comment" // in each statement
)

// way is one run of a driver's program: which address, and with which fence.
type way struct {
	name    string
	rig     *rig
	port    string
	sec     security
	carrier carrier
	token   int
}

// ways are the runs of a cell; the first goes to the server itself.
func ways(r *rig, sec security, carriers []carrier) []way {
	direct, proxied := strconv.Itoa(r.Port), stack.Port(r.proxies[sec])
	all := []way{{"direct", r, direct, sec, none, 0}, {"unfenced", r, proxied, sec, none, 0}}
	for _, token := range []int{34, 33} {
		for _, by := range carriers {
			state := map[int]string{34: "current", 33: "stale"}[token]
			all = append(all, way{state + " by " + string(by), r, proxied, sec, by, token})
		}
	}
	return all
}

func (w way) stale() bool { return w.token == 33 }

func (w way) fence() string { return fmt.Sprintf("orders=%d", w.token) }

// options are the startup packet's.
func (w way) options() string {
	if w.carrier == byOptions {
		return "-c wirefence.token=" + w.fence()
	}
	return ""
}

// set is what a session runs first, and again when it was reset.
func (w way) set() string {
	if w.carrier == bySet {
		return "SET wirefence.token = '" + w.fence() + "'"
	}
	return "SET application_name = 'driver'"
}

// comment is what a program appends to each text of its own.
func (w way) comment() string {
	if w.carrier == byComment {
		return " /*wirefence.token='" + w.fence() + "'*/"
	}
	return ""
}

// A program prints a line for each thing that it does: a letter, a name, what
// came of it. The letter says what a stale token makes of it.
const (
	writes   = "W" // refused
	unmarked = "V" // refused, unless by a comment, which it has no text to carry in
	reads    = "R" // refused where it carries the token, else as without one
	fails    = "E" // is an error anyhow, perhaps another one behind a check
)

// compare holds what a program printed against what it printed direct.
func compare(t *testing.T, w way, got, want []string) {
	t.Helper()
	if !w.stale() {
		if !slices.Equal(got, want) {
			t.Errorf("%s\n got: %s\nwant: %s", w.name, strings.Join(got, "\n      "), strings.Join(want, "\n      "))
		}
		return
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d lines instead of %d:\n%s", w.name, len(got), len(want), strings.Join(got, "\n"))
	}
	for i, line := range got {
		refused := strings.Contains(line, "error WF001") || strings.Contains(line, "stale fencing token")
		switch letter, _, _ := strings.Cut(line, " "); {
		case letter == writes, letter == unmarked && w.carrier != byComment:
			if !refused {
				t.Errorf("%s: not refused: %s", w.name, line)
			}
		case letter == reads, letter == unmarked:
			if line != want[i] && !refused {
				t.Errorf("%s\n got: %s\nwant: %s", w.name, line, want[i])
			}
		}
	}
	if n := w.rig.rows(t, "t"); n != 0 {
		t.Errorf("%s: %d rows were written", w.name, n)
	}
	if n := w.rig.rows(t, "u"); n != 0 && w.carrier != byComment {
		t.Errorf("%s: %d rows were written to u", w.name, n)
	}
}

// sound fails where the direct run, which all others are held against, doesn't
// do what it says or does too little.
func sound(t *testing.T, lines []string) {
	t.Helper()
	written := 0
	for _, line := range lines {
		letter, _, _ := strings.Cut(line, " ")
		failed := strings.Contains(line, "error ")
		switch {
		case !slices.Contains([]string{writes, unmarked, reads, fails}, letter):
			t.Errorf("direct: a line without a letter: %s", line)
		case letter == fails != failed && letter != reads, strings.Contains(line, "WF"):
			t.Errorf("direct: %s", line)
		case strings.Contains(line, "cancel: ") && !strings.Contains(line, "error 57014") && !strings.Contains(line, "cancelled"):
			t.Errorf("direct: the query ended by itself: %s", line)
		}
		if letter == writes {
			written++
		}
	}
	if written < 5 || len(lines) < 10 {
		t.Errorf("direct: the program does too little:\n%s", strings.Join(lines, "\n"))
	}
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, reads+" alive: ") || strings.Contains(last, "error") {
		t.Errorf("direct: the program doesn't end by showing that its connection lives: %s", last)
	}
}
