package sqltext

import "bytes"

// Class says whether a check can share a statement's transaction. It depends only on the
// leading words.
type Class uint8

const (
	// Alone can't share a transaction with a check outside of a transaction block, or
	// isn't known to: CALL and DO, commands that refuse a transaction block, and
	// statements with an unknown first word.
	Alone Class = iota
	// Ordinary statements run behind a check in the same transaction.
	Ordinary
	// Savepoint is SAVEPOINT.
	Savepoint
	// Begins is BEGIN and START TRANSACTION.
	Begins
	// Ends is COMMIT, END, ROLLBACK and ABORT, with AND CHAIN too.
	Ends
	// Undoes is ROLLBACK TO and RELEASE.
	Undoes
	// Precedes is SET TRANSACTION and LOCK, which must, or should, come before the
	// transaction's first snapshot.
	Precedes
	// Free needs no check: SET, also as SELECT set_config('…', …, …), SHOW,
	// RESET, DEALLOCATE and ROLLBACK PREPARED.
	Free
	// Discards is DISCARD.
	Discards
	// PreparesTransaction is PREPARE TRANSACTION.
	PreparesTransaction
	// CommitsPrepared is COMMIT PREPARED.
	CommitsPrepared
)

// Controls reports whether the statement is transaction control: a check ahead of it need
// not cover later statements.
func (c Class) Controls() bool {
	switch c {
	case Begins, Ends, Undoes, Precedes, PreparesTransaction, CommitsPrepared:
		return true
	}
	return false
}

// ordinary are first words of statements that can always run behind a check.
var ordinary = set("select", "values", "table", "with", "insert", "update", "delete", "merge", "truncate",
	"copy", "explain", "fetch", "move", "close", "execute", "declare", "listen", "unlisten", "notify", "load",
	"analyze", "analyse", "checkpoint", "comment", "grant", "revoke", "security", "reassign", "import", "refresh")

func set(words ...string) map[string]bool {
	m := make(map[string]bool, len(words))
	for _, w := range words {
		m[w] = true
	}
	return m
}

// class returns the statement's class by its leading words.
func (st *state) class() Class {
	first := st.words[0].text()
	switch string(first) {
	case "":
		if st.parenthesis {
			return Ordinary // a query in parentheses
		}
	case "begin", "start":
		return Begins
	case "savepoint":
		return Savepoint
	case "release":
		return Undoes
	case "commit", "end":
		if st.words[1].is("prepared") {
			return CommitsPrepared
		}
		return Ends
	case "rollback", "abort":
		switch {
		case st.words[1].is("prepared"):
			return Free
		case st.words[1].is("to") || st.words[2].is("to"):
			return Undoes
		}
		return Ends
	case "lock":
		return Precedes
	case "set":
		return st.classOfSet()
	case "reset", "show", "deallocate":
		return Free
	case "discard":
		return Discards
	case "prepare":
		if st.words[1].is("transaction") && (st.third == literal || st.third == escaped) {
			return PreparesTransaction
		}
		return Ordinary
	case "create", "alter", "drop":
		return st.classOfDDL()
	default:
		if ordinary[string(first)] {
			return Ordinary
		}
	}
	return Alone
}

func (st *state) classOfSet() Class {
	switch {
	case st.words[1].is("constraints"):
		return Ordinary // runs the triggers that were deferred
	case st.words[1].is("transaction"), (st.words[1].is("local") || st.words[1].is("session")) && st.words[2].is("transaction"):
		return Precedes
	}
	return Free
}

// classOfDDL returns Alone for the commands that refuse a transaction block.
func (st *state) classOfDDL() Class {
	object := st.words[1]
	if object.is("unique") {
		object = st.words[2]
	}
	action := st.words[0]
	switch string(object.text()) {
	case "index":
		if st.concurrently {
			return Alone
		}
	case "table":
		if st.concurrently && action.is("alter") {
			return Alone // DETACH PARTITION
		}
	case "database":
		if !action.is("alter") || st.tablespace {
			return Alone
		}
	case "tablespace":
		if !action.is("alter") {
			return Alone
		}
	case "subscription":
		return Alone
	case "system":
		if action.is("alter") {
			return Alone
		}
	}
	return Ordinary
}

// Command names a statement by its first words, as in "CREATE INDEX
// CONCURRENTLY", for an error message.
func Command(statement []byte) string {
	const most = 3
	var words [][]byte
	for _, field := range bytes.Fields(statement) {
		for _, c := range field {
			if class[c]&isIdentStart == 0 || c >= 0x80 {
				field = nil
				break
			}
		}
		if len(field) == 0 || len(field) > maxWord || len(words) == most {
			break
		}
		words = append(words, field)
	}
	if len(words) == 0 {
		return "the statement"
	}
	switch upper := bytes.ToUpper(words[0]); string(upper) {
	case "CALL", "DO", "VACUUM", "REINDEX", "CLUSTER":
		words = words[:1]
	case "CREATE", "DROP", "ALTER":
		if len(words) == most && !bytes.EqualFold(words[2], []byte("concurrently")) {
			words = words[:2]
		}
	default:
		words = words[:min(2, len(words))]
	}
	return string(bytes.ToUpper(bytes.Join(words, []byte(" "))))
}
