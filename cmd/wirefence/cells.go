package main

import (
	"io"
	"regexp"
	"strconv"
	"text/tabwriter"
	"unicode/utf8"
)

// newTable makes a table whose cells are separated by tabs.
func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// cell is a text from outside for a cell of a table. It quotes one that could end the
// line, move the cursor or shift the columns.
func cell(text string) string {
	if !utf8.ValidString(text) {
		return strconv.Quote(text)
	}
	for _, r := range text {
		if !strconv.IsPrint(r) {
			return strconv.Quote(text)
		}
	}
	return text
}

// cellOrDash is a cell that is never empty.
func cellOrDash(text string) string {
	if text == "" {
		return "-"
	}
	return cell(text)
}

// grantID matches the id behind a holder's name, from a lock client or from
// wirefence.acquire.
var grantID = regexp.MustCompile(`/(?:[A-Z2-7]{26}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

// holderName is a holder without the grant's id, which makes tables wide.
func holderName(holder string) string {
	if at := grantID.FindStringIndex(holder); at != nil && at[0] > 0 {
		return holder[:at[0]]
	}
	return holder
}
