package sqltext

import "strings"

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
	// Precedes is SET TRANSACTION, which must come before the transaction's first snapshot.
	Precedes
	// Lock is LOCK, which should too: a check takes the snapshot.
	Lock
	// Free needs no check: SET, also as SELECT set_config(…) alone, SHOW, RESET and
	// DEALLOCATE.
	Free
	// Discards is DISCARD.
	Discards
	// PreparesTransaction is PREPARE TRANSACTION.
	PreparesTransaction
	// EndsPrepared is COMMIT PREPARED and ROLLBACK PREPARED.
	EndsPrepared
)

// Controls reports whether the statement is transaction control: a check ahead of it need
// not cover later statements.
func (c Class) Controls() bool {
	switch c {
	case Begins, Ends, Undoes, Precedes, PreparesTransaction, EndsPrepared:
		return true
	}
	return false
}

// classify returns the class of the statement, and the flags that depend on its first words.
func (s *Scanner) classify() (Class, Flags) {
	st := &s.st
	switch string(s.firstWord()) {
	case "":
		if st.first[0].kind == open {
			return Ordinary, 0 // a query in parentheses
		}
	case "select":
		return s.classifySelect()
	case "values", "table", "with", "insert", "update", "delete", "merge", "truncate", "copy", "explain", "fetch", "move", "listen",
		"notify", "load", "checkpoint", "comment", "grant", "revoke", "security", "reassign", "import", "refresh":
		return Ordinary, 0
	case "execute":
		return Ordinary, Runs
	case "close", "unlisten":
		return Ordinary, Cleans
	case "declare":
		return Ordinary, Stores
	case "prepare":
		if s.word(1, "transaction") && (st.first[2].kind == literal || st.first[2].kind == escaped) {
			return PreparesTransaction, 0
		}
		return Ordinary, Stores
	case "deallocate":
		if s.word(1, "all") || s.word(1, "prepare") && s.word(2, "all") {
			return Free, Cleans | DropsPrepared
		}
		return Free, Cleans
	case "begin", "start":
		return Begins, 0
	case "savepoint":
		return Savepoint, 0
	case "release":
		return Undoes, 0
	case "commit", "end":
		if s.word(1, "prepared") {
			return EndsPrepared, 0
		}
		return Ends, Commits | flagsIf(s.chains(), Chains)
	case "rollback", "abort":
		switch {
		case s.word(1, "prepared"):
			return EndsPrepared, 0
		case s.word(1, "to") || s.word(2, "to"):
			return Undoes, 0
		}
		return Ends, flagsIf(s.chains(), Chains)
	case "lock":
		return Lock, 0
	case "set":
		return s.classifySet()
	case "show":
		return Free, 0
	case "reset":
		return Free, Cleans | flagsIf(s.word(1, "all"), Resets) | flagsIf(s.word(1, "application_name"), Renames)
	case "discard":
		return Discards, Cleans | flagsIf(s.word(1, "all"), Resets|DropsPrepared|Unlocks)
	case "create", "alter", "drop":
		if !s.refusesBlock() {
			return Ordinary, 0
		}
	}
	return Alone, 0
}

// maxWord is the length of the longest word that a statement's name consists of.
const maxWord = 16

// firstWord returns the first token, folded, if it is an unquoted word.
func (s *Scanner) firstWord() []byte {
	t := s.st.first[0]
	if t.kind != word || int(t.end-t.start) > len(s.folded) {
		return nil
	}
	for i, c := range s.text[t.start:t.end] {
		s.folded[i] = lower[c]
	}
	return s.folded[:t.end-t.start]
}

// classifySelect finds the calls of one function that stand for a command of their own. true
// or false as the last argument of set_config rules out another schema's function of this
// name, unless a parameter has a type that fits it better than text.
func (s *Scanner) classifySelect() (Class, Flags) {
	at, qualified := 1, s.word(1, "pg_catalog") && s.st.first[2].kind == dot
	if qualified {
		at = 3
	}
	local := s.word(at+6, "true")
	switch {
	case s.isOwnCall():
		return Free, 0
	case s.word(at, "pg_advisory_unlock_all") && s.isCall(at, open, closing):
		return Ordinary, Cleans
	case !s.word(at, "set_config"):
	case (local || s.word(at+6, "false")) && s.isCall(at, open, literal, comma, literal, comma, word, closing):
		return Free, flagsIf(local, Local)
	case qualified && s.isCall(at, open, literal, comma, literal, comma, literal, closing):
		return Free, 0
	}
	return Ordinary, 0
}

// isOwnCall reports whether the statement is one call, with constants and parameters, of a
// function that holds a fence or gives it back, as another proxy sends it. Such a call
// checks for itself. A check ahead of it would keep the locks that it gives back.
func (s *Scanner) isOwnCall() bool {
	st := &s.st
	if !s.word(1, "wirefence") || st.first[2].kind != dot || st.first[4].kind != open || st.last.kind != closing || st.computes {
		return false
	}
	return s.word(3, "proxy_hold") || s.word(3, "proxy_unhold")
}

// isCall reports whether tokens of these kinds, and no others, are behind the one at index
// at. A parameter may stand for a literal.
func (s *Scanner) isCall(at int, behind ...kind) bool {
	for i, want := range behind {
		if k := s.st.first[at+1+i].kind; k != want && (k != param || want != literal) {
			return false
		}
	}
	return s.st.n == at+1+len(behind)
}

// chains reports whether the statement has AND CHAIN.
func (s *Scanner) chains() bool {
	return s.word(1, "and") && s.word(2, "chain") || s.word(2, "and") && s.word(3, "chain")
}

func (s *Scanner) classifySet() (Class, Flags) {
	at, local := 1, s.word(1, "local")
	if local || s.word(1, "session") {
		at = 2
	}
	switch flags := flagsIf(local, Local); {
	case s.word(at, "transaction"):
		return Precedes, flags | flagsIf(s.word(at+1, "snapshot"), Imports)
	case s.word(1, "constraints"):
		return Ordinary, 0 // runs the triggers that were deferred
	case s.word(1, "session") && s.word(2, "authorization") && s.word(3, "default") && s.st.n == 4:
		return Free, Cleans
	default:
		name := s.st.first[at]
		names := s.is(name, "wirefence") || name.kind == quoted && hasFolded(s.text[name.start+1:], "wirefence")
		return Free, flags | flagsIf(names, CallsSetter) | flagsIf(s.is(name, "application_name"), Renames)
	}
}

func flagsIf(condition bool, flags Flags) Flags {
	if condition {
		return flags
	}
	return 0
}

// refusesBlock reports whether a CREATE, ALTER or DROP refuses a transaction block.
func (s *Scanner) refusesBlock() bool {
	alters := s.word(0, "alter")
	switch {
	case s.word(1, "index") || s.word(1, "unique"):
		return s.st.concurrently
	case s.word(1, "table"):
		return s.st.concurrently && alters // DETACH PARTITION
	case s.word(1, "database"):
		return !alters || s.word(3, "set") && s.word(4, "tablespace")
	case s.word(1, "tablespace"):
		return !alters
	case s.word(1, "system"):
		return alters
	}
	return s.word(1, "subscription")
}

// Command names a statement by its first words, as in "CREATE INDEX
// CONCURRENTLY", for an error message.
func Command(statement []byte) string {
	words := strings.Fields(strings.ToUpper(string(statement[:min(len(statement), 64)])))
	n := 0
	for n < min(len(words), 3) && len(words[n]) <= maxWord && strings.Trim(words[n], "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" {
		n++
	}
	if n == 0 {
		return "the statement"
	}
	switch words[0] {
	case "CALL", "DO", "VACUUM", "REINDEX", "CLUSTER":
		n = 1
	case "CREATE", "DROP", "ALTER":
		if n == 3 && words[2] != "CONCURRENTLY" {
			n = 2
		}
	default:
		n = min(n, 2)
	}
	return strings.Join(words[:n], " ")
}
