package wiretest

import (
	"slices"
	"strings"
)

// What a session that carries a fence sees otherwise than PostgreSQL says. Each
// function says why, and makes from the direct answers those that must come. A
// line that ends in * stands for all that begin alike.

// replies keeps the answers to the login and replaces the rest.
func replies(direct []string, lines ...string) []string {
	login := slices.IndexFunc(direct, func(line string) bool { return line[0] == 'Z' })
	return append(direct[:login+1], lines...)
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

// A check opens an implicit transaction, in which these commands can't run.
func unfenceable(direct []string, _ carrier, _ int) []string {
	direct = instead(direct, `C "CREATE INDEX\x00"`, unfenceableError+"CREATE INDEX CONCURRENTLY cannot be fenced*")
	return instead(direct, `C "DROP INDEX\x00"`, unfenceableError+"DROP INDEX CONCURRENTLY cannot be fenced*")
}

// A prepared transaction outlives the locks of its check: whoever commits it
// later may do so behind a handoff.
func twoPhaseCantBeFenced(direct []string, _ carrier, _ int) []string {
	return replies(direct,
		`C "BEGIN\x00"`, `Z "T"`, `C "INSERT 0 1\x00"`, `Z "T"`, unfenceableError+"PREPARE TRANSACTION cannot be fenced*", `Z "E"`,
		`C "ROLLBACK\x00"`, `Z "I"`, unfenceableError+"COMMIT PREPARED cannot be fenced*", `Z "I"`, "t holds ")
}

// A procedure that committed would go on without a check: behind one PostgreSQL
// lets it end no transaction.
func procedureCantCommit(direct []string, _ carrier, _ int) []string {
	for _, tag := range []string{`C "CALL\x00"`, `C "DO\x00"`} {
		direct = instead(direct, tag, `E SERROR | VERROR | C2D000 | Minvalid transaction termination*`)
	}
	return instead(direct, "t holds ", "t holds ")
}

// PostgreSQL 18 leaves a batch's implicit transaction open behind a function
// call. The proxy's block around the call, with its check, ends it.
func callEndsBatch(direct []string, by carrier, _ int) []string {
	if by.name == byComment.name {
		return direct
	}
	return instead(direct, `Z "T"`, `Z "I"`)
}

// A comment among the commands of a replication connection can't be honoured.
func notAmongReplication(direct []string, by carrier, _ int) []string {
	if by.name != byComment.name {
		return direct
	}
	refused := unfenceableError + "a write on a replication connection cannot be fenced*"
	return replies(direct, refused, `Z "I"`, refused, `Z "I"`, `E SERROR | VERROR | C42601 | Msyntax error*`, `Z "I"`, "t holds ")
}

// Whether a backslash ends a literal depends on a setting of the same batch, of
// which nobody knows yet whether it succeeds: such a text is refused, and the
// batch with it.
func textInDoubt(direct []string, _ carrier, _ int) []string {
	insert := slices.Index(direct, `C "INSERT 0 1\x00"`)
	return append(direct[:insert-2], unfenceableError+"*", `Z "I"`, "t holds ")
}
