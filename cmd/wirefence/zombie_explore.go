package main

import (
	"fmt"
	"io"

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
		ahead := ""
		if s.Ahead != "" {
			ahead = ", with " + s.Ahead + " ahead of it"
		}
		fmt.Fprintf(w, "The smallest schedule that ends in a stale write: freeze before message %d%s.\n\n", s.Moment, ahead)
		fmt.Fprintln(w, s)
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
