package drivertest

import (
	"fmt"
	"regexp"
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
// came of it. The letter says what a stale token makes of it. A current one changes
// nothing, but for what is declared.
const (
	writes   = "W" // refused
	reads    = "R" // refused; by a comment only where the program puts it into the text
	unmarked = "V" // writes by a text of the driver's own: refused unless by a comment
	declares = "D" // reads by a DECLARE that the driver puts before the text: WF006 by a comment
	stands   = "S" // runs nothing that needs a check, or in a session without a fence: as direct
	fails    = "E" // is an error anyhow, perhaps another one behind a check
)

const letters = writes + reads + unmarked + declares + stands + fails

// compare holds what a program printed against what it printed direct.
func compare(t *testing.T, w way, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d lines instead of %d:\n%s", w.name, len(got), len(want), strings.Join(got, "\n"))
	}
	for i, line := range got {
		if !w.expects(line, want[i]) {
			t.Errorf("%s\n   got: %s\ndirect: %s", w.name, line, want[i])
		}
	}
	if !w.stale() {
		return
	}
	if n := w.rig.rows(t, "t"); n != 0 {
		t.Errorf("%s: %d rows were written", w.name, n)
	}
	if n := w.rig.rows(t, "u"); n != 0 && w.carrier != byComment {
		t.Errorf("%s: %d rows were written to u", w.name, n)
	}
}

// expects reports whether a line is what the way makes of the direct one.
func (w way) expects(line, direct string) bool {
	letter, text, _ := strings.Cut(line, " ")
	wantLetter, wantText, _ := strings.Cut(direct, " ")
	name, _, _ := strings.Cut(wantText, ":")
	if letter != wantLetter || !strings.HasPrefix(text, name+":") {
		return false
	}
	refused := strings.Contains(line, "error WF001") || strings.Contains(line, "stale fencing token")
	switch {
	case letter == declares && w.carrier == byComment:
		return strings.HasPrefix(text, name+": error WF006")
	case !w.stale(), letter == stands:
		return line == direct
	case letter == fails:
		return strings.Contains(line, "error ")
	case letter == reads && w.carrier == byComment:
		return refused || line == direct
	case letter == unmarked && w.carrier == byComment:
		return line == direct
	}
	return refused
}

func TestExpects(t *testing.T) {
	t.Parallel()
	const current, stale = 34, 33
	for _, c := range []struct {
		token  int
		by     carrier
		direct string
		line   string
		want   bool
	}{
		{current, bySet, "W insert: 1", "W insert: 1", true},
		{current, bySet, "W insert: 1", "W insert: error WF001", false},
		{current, bySet, "W insert: 1", "W update: 1", false},
		{current, bySet, "D cursor: 3", "D cursor: 3", true},
		{current, byComment, "D cursor: 3", "D cursor: error WF006", true},
		{current, byComment, "D cursor: 3", "D cursor: 3", false},
		{current, byComment, "V copy: 3", "V copy: 3", true},
		{stale, bySet, "W insert: 1", "W insert: error WF001", true},
		{stale, byComment, "W insert: 1", "W insert: 1", false},
		{stale, bySet, "W insert: 1", "W insert: error 42601", false},
		{stale, byOptions, "R select: 1", "R select: 1", false},
		{stale, bySet, "R select: 1", "R select: error WF001", true},
		{stale, byComment, "R notify: news", "R notify: news", true},
		{stale, byComment, "R notify: news", "R notify: error 25P02", false},
		{stale, bySet, "V copy: 3", "V copy: 3", false},
		{stale, byComment, "V copy: 3", "V copy: 3", true},
		{stale, bySet, "D cursor: 3", "D cursor: error WF001", true},
		{stale, bySet, "D cursor: 3", "D cursor: error WF006", false},
		{stale, byComment, "D cursor: 3", "D cursor: error WF006", true},
		{stale, bySet, "S ping: 1", "S ping: 1", true},
		{stale, bySet, "S ping: 1", "S ping: error WF001", false},
		{stale, bySet, "E duplicate: error 23505", "E duplicate: error WF001", true},
		{stale, bySet, "E duplicate: error 23505", "E duplicate: 1", false},
	} {
		w := way{carrier: c.by, token: c.token}
		if got := w.expects(c.line, c.direct); got != c.want {
			t.Errorf("token %d by %s, direct %q: expects(%q) = %t", c.token, c.by, c.direct, c.line, got)
		}
	}
}

var alive = regexp.MustCompile(`^` + reads + ` (.* / )?alive: `)

// sound fails where the direct run, which all others are held against, doesn't
// do what it says or does too little.
func sound(t *testing.T, lines []string) {
	t.Helper()
	written := 0
	for _, line := range lines {
		letter, _, _ := strings.Cut(line, " ")
		failed := strings.Contains(line, "error ")
		switch {
		case len(letter) != 1 || !strings.Contains(letters, letter):
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
	if last := lines[len(lines)-1]; !alive.MatchString(last) || strings.Contains(last, "error") {
		t.Errorf("direct: the program doesn't end by showing that its connection lives: %s", last)
	}
}
