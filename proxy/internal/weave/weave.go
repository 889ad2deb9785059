// Package weave decides where a check goes: before which of a client's
// statements the proxy lets PostgreSQL test the fence. The decisions are pure
// functions; nothing here reads or writes a connection.
//
// The rule behind all of them: every write that carries a fence, or must carry
// one, runs in a transaction in which its fence has been checked, and the check
// still counts. A check stands directly before the first write that needs it,
// never at the head of the text: a SELECT ahead of BEGIN ISOLATION LEVEL
// SERIALIZABLE would make PostgreSQL refuse the BEGIN.
package weave

import (
	"encoding/hex"

	"github.com/wirefence/wirefence/fence"
)

// Step is what a plan must know of one statement.
type Step struct {
	At          int    // byte offset of its first token in the message's text
	Write       bool   // must be checked
	Unfenceable string // the command's name, if no check can cover it
	EndsTx      bool   // what follows is another transaction
	Uncovers    bool   // an earlier check may no longer count
	Setter      bool   // may change the session variable
}

// Carrier is where a message's fence comes from.
type Carrier struct {
	// Comment is the text of the fence in the message's comments, which
	// overrides the session variable.
	Comment string
	// Variable says that the session variable may carry a fence.
	Variable bool
}

// Carries reports whether there may be a fence at all.
func (c Carrier) Carries() bool { return c.Comment != "" || c.Variable }

// Coverage says which fences the current transaction has been checked for. The
// zero value is none.
type Coverage struct {
	variable bool
	comment  string
}

// Covers reports whether a check for this carrier has been made.
func (c Coverage) Covers(by Carrier) bool {
	if by.Comment != "" {
		return c.comment == by.Comment
	}
	return c.variable
}

// Add returns the coverage after a check for this carrier.
func (c Coverage) Add(by Carrier) Coverage {
	if by.Comment != "" {
		c.comment = by.Comment
	} else {
		c.variable = true
	}
	return c
}

// After returns the coverage after a statement has run.
func (c Coverage) After(s Step) Coverage {
	if s.EndsTx || s.Uncovers {
		return Coverage{}
	}
	if s.Setter {
		c.variable = false
	}
	return c
}

// Call is the SQL that makes a check. The zero value is not usable.
type Call struct {
	head, tail string
}

// NewCall returns the call for a proxy's policy: def is what a bare token in
// the session variable means, required refuses a write without a fence, and
// observe only reports what a check would have said.
func NewCall(def fence.Resource, required, observe bool) Call {
	function := "check"
	if observe {
		function = "observe"
	}
	tail := ", NULL, "
	if def != "" {
		tail = ", " + literal(string(def)) + ", "
	}
	if required {
		tail += "true)"
	} else {
		tail += "false)"
	}
	return Call{head: "SELECT wirefence." + function + "(", tail: tail}
}

// literal returns an SQL expression for the text that means the same under
// every standard_conforming_strings and client_encoding.
func literal(text string) string {
	if fence.Resource(text).Encode() == text {
		return "'" + text + "'"
	}
	return "pg_catalog.convert_from(pg_catalog.decode('" + hex.EncodeToString([]byte(text)) + "', 'hex'), 'UTF8')"
}

// Prepared is the text of the prepared check, whose one parameter is the fence;
// NULL reads the session variable.
func (c Call) Prepared() string { return c.head + "$1" + c.tail }

// Simple is the text of a check that is a message of its own.
func (c Call) Simple(by Carrier) string { return string(c.appendSimple(nil, by)) }

// appendSimple appends the check as a statement of a simple query.
func (c Call) appendSimple(dst []byte, by Carrier) []byte {
	dst = append(dst, c.head...)
	if by.Comment == "" {
		dst = append(dst, "NULL"...)
	} else {
		dst = append(append(append(dst, '\''), by.Comment...), '\'')
	}
	dst = append(dst, c.tail...)
	return append(dst, ';')
}

// Plan says what becomes of a simple query.
type Plan struct {
	// Inserts are the byte offsets before which a check is put, ascending.
	Inserts []int
	// After is the coverage behind the message, if its transaction goes on.
	After Coverage
	// Refuse is the condition under which nothing of the message may run, and
	// Command the command it is about.
	Refuse  fence.SQLState
	Command string

	ours    []int // indexes of the checks among the woven text's results
	chars   []int // Inserts in characters
	width   int   // characters of one check
	results int   // results that have come
}

// Query plans a simple query. covered is what the transaction has been checked
// for so far; with required, a write without a fence is refused.
func (p *Plan) Query(steps []Step, by Carrier, covered Coverage, required bool) {
	*p = Plan{Inserts: p.Inserts[:0], ours: p.ours[:0], chars: p.chars[:0]}
	for i, s := range steps {
		if s.Write || s.Unfenceable != "" {
			switch {
			case s.Unfenceable != "" && by.Carries():
				p.Refuse, p.Command = fence.CannotBeFenced, s.Unfenceable
				return
			case required && !by.Carries():
				p.Refuse = fence.TokenRequired
				return
			case by.Carries() && !covered.Covers(by):
				p.ours = append(p.ours, i+len(p.Inserts))
				p.Inserts = append(p.Inserts, s.At)
				covered = covered.Add(by)
			}
		}
		covered = covered.After(s)
		by.Variable = by.Variable || s.Setter
	}
	p.After = covered
}

// Rewrite appends text with the checks put in. count counts the characters of a
// part of the text, as PostgreSQL counts them in the position of an error.
func (p *Plan) Rewrite(dst, text []byte, by Carrier, call Call, count func([]byte) int) []byte {
	from := 0
	for _, at := range p.Inserts {
		before := 0
		if n := len(p.chars); n > 0 {
			before = p.chars[n-1]
		}
		p.chars = append(p.chars, before+count(text[from:at]))
		dst = append(dst, text[from:at]...)
		start := len(dst)
		dst = call.appendSimple(dst, by)
		p.width = len(dst) - start
		from = at
	}
	return append(dst, text[from:]...)
}

// Ours reports whether the result that comes next is a check's.
func (p *Plan) Ours() bool {
	for _, i := range p.ours {
		if i >= p.results {
			return i == p.results
		}
	}
	return false
}

// NextResult notes that a result is complete.
func (p *Plan) NextResult() { p.results++ }

// Position moves an error's position in the woven text back to the client's
// text, both in characters from 1. It returns 0 for a position inside a check.
func (p *Plan) Position(woven int) int {
	back := 0
	for k, at := range p.chars {
		start := at + k*p.width // characters before the check
		if woven <= start {
			break
		}
		if woven <= start+p.width {
			return 0
		}
		back += p.width
	}
	return woven - back
}
