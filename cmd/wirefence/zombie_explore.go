package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/wirefence/wirefence/internal/zombie"
)

func printExploration(w io.Writer, r *zombie.Exploration) error {
	if len(r.Windows) > 0 {
		if err := printTable(w, r.Windows, "", "MOMENTS\tTRIED\tSHOWS\tBEHIND\tUP TO BEFORE", func(window zombie.Window) []any {
			numbers := fmt.Sprint(window.From)
			if window.To > window.From {
				numbers += fmt.Sprint("-", window.To)
			}
			return []any{numbers, window.Tried, window.Shows, window.Behind, window.Before}
		}); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if s := r.Schedule; s != nil {
		fmt.Fprintf(w, "The smallest schedule that ends in a stale write: freeze before message %d.\n\n", s.Moment)
		for _, line := range story(s.Steps) {
			fmt.Fprintln(w, line)
		}
		fmt.Fprintln(w)
		if err := printWrites(w, s.Writes); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	for _, window := range r.Windows {
		if window.Reason != "" {
			fmt.Fprintf(w, "note: %s, moment %d: %s\n", window.Shows, window.To, window.Reason)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintln(w, "note: "+note)
	}
	tried := fmt.Sprintf("%d of %d moments were tried", r.Tried, r.Messages)
	if r.Tried < r.Messages {
		tried += ", each other is between two that show the same"
	}
	_, err := fmt.Fprintln(w, map[zombie.Verdict]string{
		zombie.Stale:   "STALE: a run that goes on behind another's turn overwrites it; " + tried + ".",
		zombie.None:    "None: at no moment a stale write was seen; " + tried + ".",
		zombie.Unknown: "Unknown: " + r.Reason + "; " + tried + ".",
	}[r.Verdict])
	return err
}

// mostBefore is how many messages are told before the freeze.
const mostBefore = 8

// story is a schedule for people, both runs side by side.
func story(steps []zombie.Scene) (lines []string) {
	var left, right []string
	frozen, width := 0, 0
	for _, s := range steps {
		text := "*** " + s.What
		if s.Message != nil {
			switch s.Message.Kind {
			case "bind", "sync", "connect", "close":
				continue
			}
			text = s.Message.Text()
			for i, value := range s.Message.Parameters {
				if i == 0 {
					text += "  with"
				}
				if value == nil {
					text += " null"
				} else {
					text += " " + strconv.Quote(*value)
				}
			}
			if s.Message.Answer != "" {
				text += "  -> " + s.Message.Answer
			}
		}
		text = cell(text)
		if s.What == "frozen" {
			frozen = len(left)
		}
		if s.Run == "second" {
			left, right = append(left, ""), append(right, text)
		} else {
			left, right = append(left, text), append(right, "")
		}
	}
	if from := frozen - mostBefore; from > 0 {
		left, right = left[from-1:], right[from-1:]
		left[0] = fmt.Sprintf("(%d messages)", from)
	}
	left, right = append([]string{"FIRST RUN"}, left...), append([]string{"SECOND RUN"}, right...)
	for _, text := range left {
		width = max(width, utf8.RuneCountInString(text))
	}
	for i, text := range left {
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%-*s  %s", width, text, right[i]), " "))
	}
	return lines
}
