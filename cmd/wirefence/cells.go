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

// ofGrant matches what lockclient.HolderOf puts behind a holder's name.
var ofGrant = regexp.MustCompile(`/[A-Z2-7]{26}$`)

// holderName is a holder without its grant's part, which makes tables wide.
func holderName(holder string) string {
	if at := ofGrant.FindStringIndex(holder); at != nil && at[0] > 0 {
		return holder[:at[0]]
	}
	return holder
}
