package weave

import (
	"encoding/hex"
	"strings"

	"github.com/wirefence/wirefence/fence"
)

// Call is the SQL that makes a check. The zero value is not usable.
type Call struct {
	head, tail           string // around the fence
	readsHead, readsTail string // where it is a read that is checked
	observes             bool
	leased               bool
}

// VerifyState is the SQLSTATE with which a check fails that finds another value
// in the session variable than it should: undefined_object, since it then reads
// a variable that nobody has.
const VerifyState = "42704"

// verified is an expression for the session variable's value that fails if it
// isn't the one that stands between the two parts.
const (
	verifiedHead = "pg_catalog.current_setting(CASE WHEN COALESCE(pg_catalog.current_setting('wirefence.token', true), '') OPERATOR(pg_catalog.=) "
	verifiedTail = " THEN 'wirefence.token' ELSE 'wirefence.elsewhere' END)"
)

// stamped is an expression for the fence of what has none in a comment: null if
// the session variable has one, which check reads then, else what stands between
// the two parts.
const (
	stampedHead = "CASE WHEN pg_catalog.current_setting('wirefence.token', true) OPERATOR(pg_catalog.<>) '' THEN NULL ELSE "
	stampedTail = " END"
)

// NewCall returns the call for a proxy's policy: def is what a bare token in
// the session variable means, required refuses a write without a fence, and
// observe only reports what a check would have said.
func NewCall(def fence.Resource, required, observe bool) Call {
	function := "check"
	if observe {
		function = "observe"
	}
	tail := ", NULL"
	if def != "" {
		tail = ", " + literal(string(def))
	}
	readsTail := tail + ")"
	tail += ", "
	if required {
		tail += "true)"
	} else {
		tail += "false)"
	}
	head := "SELECT wirefence." + function
	return Call{head: head + "(", tail: tail, readsHead: head + "_read(", readsTail: readsTail, observes: observe}
}

// Leased returns the call of a proxy that stamps what carries nothing. It refuses
// a write without a fence: the lease isn't held then.
func (c Call) Leased() Call {
	c.leased = true
	c.tail = strings.TrimSuffix(c.tail, "false)")
	if !strings.HasSuffix(c.tail, "true)") {
		c.tail += "true)"
	}
	return c
}

// literal returns an SQL expression for the text that means the same under
// every standard_conforming_strings and client_encoding.
func literal(text string) string {
	plain := true
	for _, c := range []byte(text) {
		plain = plain && ' ' <= c && c <= '~' && c != '\'' && c != '\\'
	}
	if plain {
		return "'" + text + "'"
	}
	return "pg_catalog.convert_from(pg_catalog.decode('" + hex.EncodeToString([]byte(text)) + "', 'hex'), 'UTF8')"
}

// ofReads returns the call that checks a read.
func (c Call) ofReads() Call {
	c.head, c.tail = c.readsHead, c.readsTail
	return c
}

// Prepared is the text of the prepared check, of a read or not, whose first
// parameter is the fence; NULL reads the session variable. A call that stamps has
// a second one, for where the variable has none either.
func (c Call) Prepared(reads bool) string {
	if reads {
		c = c.ofReads()
	}
	if c.leased {
		return c.head + "COALESCE($1, " + stampedHead + "$2" + stampedTail + ")" + c.tail
	}
	return c.head + "$1" + c.tail
}

// Unprepared is the text of a check for one carrier, with the parameters that
// Parameters returns.
func (c Call) Unprepared(by Carrier) string {
	if c.observes || !by.demands() {
		return c.Prepared(by.Reads)
	}
	if by.Reads {
		c = c.ofReads()
	}
	return c.head + verifiedHead + "$1" + verifiedTail + c.tail
}

// Parameters are the n parameters of a prepared check for one carrier, which they
// point into; nil is NULL.
func (c Call) Parameters(by *Carrier) (params [2]*string, n int) {
	n = 1
	if c.leased {
		n = 2
	}
	switch {
	case by.Comment != "":
		params[0] = &by.Comment
	case by.demands() && !c.observes:
		params[0], n = &by.Expect, 1
	case by.Stamp != "" && !by.Variable:
		params[0] = &by.Stamp
	case by.Stamp != "":
		params[1] = &by.Stamp
	}
	return params, n
}

// Simple is the text of a check that is a message of its own.
func (c Call) Simple(by Carrier) string { return string(c.appendSimple(nil, by)) }

// appendSimple appends the check as a statement of a simple query.
func (c Call) appendSimple(dst []byte, by Carrier) []byte {
	if by.Reads {
		c = c.ofReads()
	}
	dst = append(dst, c.head...)
	switch {
	case by.Comment != "":
		dst = append(append(append(dst, '\''), by.Comment...), '\'')
	case by.demands() && !c.observes:
		dst = append(append(append(dst, verifiedHead...), literal(by.Expect)...), verifiedTail...)
	case by.Stamp != "" && !by.Variable:
		dst = append(append(append(dst, '\''), by.Stamp...), '\'')
	case by.Stamp != "":
		dst = append(append(append(append(append(dst, stampedHead...), '\''), by.Stamp...), '\''), stampedTail...)
	default:
		dst = append(dst, "NULL"...)
	}
	dst = append(dst, c.tail...)
	return append(dst, ';')
}
