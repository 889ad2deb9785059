package zombie

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Line is a line of a schedule's story, in which one of the runs does something.
type Line struct {
	At            time.Duration // since the first run was started
	First, Second string
	Frozen        bool // the first run is
}

// mostBefore is how many messages are told before the freeze.
const mostBefore = 8

// Lines are the story of a schedule for people, who know a statement by one of its messages.
func (s *Schedule) Lines() (lines []Line) {
	from, frozen := 0, false
	for _, step := range s.Steps {
		text := "*** " + step.What
		if m := step.Message; m != nil {
			switch m.Kind {
			case connects, binds, syncs, closes:
				continue
			}
			text = m.Text()
			for i, value := range m.Parameters {
				if i == 0 {
					text += "  with"
				}
				if value == nil {
					text += " null"
				} else {
					text += " " + strconv.Quote(*value)
				}
			}
			if m.Answer != "" {
				text += "  -> " + m.Answer
			}
		}
		text = strings.Map(func(r rune) rune {
			if !strconv.IsPrint(r) {
				return utf8.RuneError
			}
			return r
		}, text)
		switch step.What {
		case isFrozen:
			from, frozen = len(lines)-mostBefore, true
		case goesOn:
			frozen = false
		}
		line := Line{At: time.Duration(step.At * float64(time.Second)), First: text, Frozen: frozen}
		if step.Run == nameOf(true) {
			line.First, line.Second = "", text
		}
		lines = append(lines, line)
	}
	if from > 0 {
		lines = append([]Line{{First: fmt.Sprintf("(%d messages)", from)}}, lines[from:]...)
	}
	return lines
}

// String is the story, both runs side by side.
func (s *Schedule) String() string {
	lines, width := append([]Line{{First: "FIRST RUN", Second: "SECOND RUN"}}, s.Lines()...), 0
	for _, line := range lines {
		width = max(width, utf8.RuneCountInString(line.First))
	}
	var out strings.Builder
	for _, line := range lines {
		out.WriteString(strings.TrimRight(fmt.Sprintf("%-*s  %s", width, line.First, line.Second), " ") + "\n")
	}
	return out.String()
}

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// bar is a part of the time line, in percent of its length.
type bar struct {
	Class, Title string
	Left, Width  float64
}

// WritePage writes the smallest schedule as one page of HTML that needs no other file.
func (s *Schedule) WritePage(w io.Writer, command []string) error {
	first, second, end, last := []bar{}, []bar{}, 0.0, map[string]float64{}
	for _, step := range s.Steps {
		end = max(end, step.At)
	}
	percent := func(at float64) float64 { return 100 * at / max(end, 0.001) }
	for _, step := range s.Steps {
		at, bars := percent(step.At), &first
		if step.Run == nameOf(true) {
			bars = &second
		}
		switch m := step.Message; {
		case m != nil:
			*bars = append(*bars, bar{Class: "message", Title: m.String(), Left: at})
		case step.What == goesOn:
			*bars = append(*bars, bar{Class: isFrozen, Title: isFrozen, Left: last[isFrozen], Width: at - last[isFrozen]})
		}
		last[step.What] = at
	}
	return pageTemplate.Execute(w, map[string]any{
		"Command": strings.Join(command, " "), "Schedule": s, "Lines": s.Lines(), "First": first, "Second": second, "End": time.Duration(end * float64(time.Second)).Round(time.Millisecond),
	})
}
