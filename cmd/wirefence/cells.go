package main

import (
	"regexp"
	"strconv"
	"unicode/utf8"
)

// cell is a text of somebody else's for a cell of a table: one that could end the
// line, move the cursor or shift the columns is quoted.
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

// grantID is what follows a holder's name, of a lock client's grant or of
// wirefence.acquire.
var grantID = regexp.MustCompile(`/(?:[A-Z2-7]{26}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

// holderName is a holder without the grant's id, which makes tables wide.
func holderName(holder string) string {
	if at := grantID.FindStringIndex(holder); at != nil && at[0] > 0 {
		return holder[:at[0]]
	}
	return holder
}
