package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// timeline prints the events of the play with their times.
type timeline struct {
	w      io.Writer
	start  time.Time
	now    time.Time // of what is printed; zero is the present
	colour bool
}

// at is the timeline for what happened at a time.
func (t *timeline) at(when time.Time) *timeline {
	past := *t
	past.now = when
	return &past
}

func newTimeline(w io.Writer, colour bool) *timeline {
	return &timeline{w: w, start: time.Now(), colour: colour}
}

// Colours, as parameters of the terminal's escape sequence.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
)

const (
	// layout has time, actor, action, token and answer; did is the column of the action.
	layout = "%6s  %-3s  %-38s  %5s  %s"
	did    = 13
	width  = 96
)

func (t *timeline) paint(colour, text string) string {
	if !t.colour {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (t *timeline) heading(text string) {
	fmt.Fprintf(t.w, "\n%s\n\n", t.paint(bold, text))
}

func (t *timeline) columns() {
	fmt.Fprintln(t.w, t.paint(dim, fmt.Sprintf(layout, "time", "who", "does", "token", "PostgreSQL says")))
}

// line prints an action without an answer of the database. Token 0 is none.
func (t *timeline) line(who, what string, token fence.Token) { t.print(who, what, token, "") }

// answered prints an action with the database's answer.
func (t *timeline) answered(who, what string, token fence.Token, e event) {
	if e.Event == wrote {
		t.print(who, what, token, t.paint(green, e.Tag))
		return
	}
	t.print(who, what, token, t.paint(red, "ERROR "+e.Code))
	for _, text := range []string{e.Message, "DETAIL: " + e.Detail} {
		for _, line := range wrap(text, width-did) {
			fmt.Fprintf(t.w, "%*s%s\n", did, "", t.paint(red, line))
		}
	}
}

func (t *timeline) print(who, what string, token fence.Token, answer string) {
	number := ""
	if token > 0 {
		number = token.String()
	}
	now := t.now
	if now.IsZero() {
		now = time.Now()
	}
	since := fmt.Sprintf("%.1fs", now.Sub(t.start).Seconds())
	fmt.Fprintln(t.w, strings.TrimRight(fmt.Sprintf(layout, since, who, what, number, answer), " "))
}

// row prints the order as psql would.
func (t *timeline) row(o order) {
	fmt.Fprintf(t.w, "\n%*sid | %-9s | written_by | token\n", did, "", "status")
	fmt.Fprintf(t.w, "%*s---+-%s-+------------+------\n", did, "", strings.Repeat("-", 9))
	fmt.Fprintf(t.w, "%*s 1 | %-9s | %-10s | %5d\n", did, "", o.status, o.by, o.token)
}

// conclude prints the result of a round.
func (t *timeline) conclude(different error, text string) {
	if different != nil {
		fmt.Fprintf(t.w, "\n%s\n", t.paint(red, fmt.Sprintf("This went differently: %v.", different)))
		return
	}
	fmt.Fprintf(t.w, "\n%s\n", t.paint(bold, text))
}

// wrap breaks a text at blanks into lines of at most limit bytes, unless a word is longer, and
// indents all but the first.
func wrap(text string, limit int) (lines []string) {
	line := ""
	for _, word := range strings.SplitAfter(text, " ") {
		if line != "" && len(strings.TrimRight(line+word, " ")) > limit {
			lines = append(lines, strings.TrimRight(line, " "))
			line = "    "
		}
		line += word
	}
	return append(lines, strings.TrimRight(line, " "))
}
