package wiretest

import (
	"slices"
	"strings"
)

// difference is what a session that carries a fence sees otherwise than PostgreSQL
// says. It makes from the direct answers those that must come. A line that ends in *
// stands for all that begin alike.
type difference func(direct []string, by carrier, major int) []string

// from replaces the answers from the line that holds a text on.
func from(direct []string, text string, lines ...string) []string {
	at := slices.IndexFunc(direct, func(line string) bool { return strings.Contains(line, text) })
	return append(direct[:at:at], lines...)
}

// instead replaces the lines that hold a text.
func instead(lines []string, text, by string) []string {
	for i, line := range lines {
		if strings.Contains(line, text) {
			lines[i] = by
		}
	}
	return lines
}

const unfenceableError = `E SERROR | VERROR | CWF006 | M`

// A takeover ends what is in its way with the words of an administrator: the proxy says
// that it may have been one.
func endExplained(direct []string, _ carrier, _ int) []string {
	const end = "E SFATAL | VFATAL | C57P01 | Mterminating connection due to administrator command | "
	return instead(direct, end, end+"DThe session was under a fence of \"orders\", and may have been in the way of a newer token*")
}

// A prepared transaction outlives the locks of its check, and those of a hold stay
// behind with the session. The refusal ends the block, as an error of PREPARE TRANSACTION
// does.
func twoPhase(direct []string, _ carrier, _ int) []string {
	return from(direct, `C "PREPARE TRANSACTION`, unfenceableError+"PREPARE TRANSACTION cannot be fenced*", `Z "I"`,
		"N SWARNING | VWARNING | C25P01 | Mthere is no transaction in progress*", `C "ROLLBACK\x00"`, `Z "I"`, unfenceableError+"COMMIT PREPARED cannot be fenced*", `Z "I"`, "t holds ")
}

// A Query behind messages without a Sync shares their transaction, which PostgreSQL 18
// leaves open behind it; behind a check it is an implicit one of several statements.
func implicitEnds(direct []string, _ carrier, _ int) []string {
	return instead(direct, `Z "T"`, `Z "I"`)
}

// Behind messages without a Sync a FunctionCall can have no check.
func callBehindUnsynced(direct []string, by carrier, _ int) []string {
	if by.text != nil { // it carries no fence
		last := len(direct) - 2 // of the query behind it
		direct[last] = strings.Replace(direct[last], `Z "T"`, `Z "I"`, 1)
		return direct
	}
	return implicitEnds(instead(direct, `V "`, unfenceableError+"a function call cannot be fenced behind*"), by, 0)
}

// Behind a check DECLARE runs in an implicit transaction, as in a text of two
// statements: its cursor is gone at the end. In a comment there is no fence for it.
func declareSucceeds(direct []string, by carrier, _ int) []string {
	if by.text != nil {
		return direct
	}
	return instead(direct, "| C25P01 | MDECLARE CURSOR", `C "DECLARE CURSOR\x00"`)
}

// Where a comment with a fence stands depends on whether a backslash escapes, which the
// same batch may change.
func readsDifferently(direct []string, by carrier, _ int) []string {
	if by.text == nil {
		return direct
	}
	at := len(direct) - 5 // 1, 2, C, Z and what the table holds
	if set := slices.Index(direct, `S "standard_conforming_strings\x00off\x00"`); set >= 0 {
		at = set - 3 // 1, 2, C
	}
	return append(direct[:at:at], unfenceableError+"cannot read a statement*", `Z "I"`, "t holds ")
}
