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
	behindTail           string // where it stands behind a statement
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

// wrote limits a check to a transaction that has written something.
const wrote = " WHERE pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL"

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
	head := "SELECT wirefence." + function
	c := Call{head: head + "(", tail: tail + ", false)", readsHead: head + "_read(", readsTail: tail + ")", observes: observe}
	c.behindTail = c.tail + wrote // what is required was there before
	if required {
		c.tail = tail + ", true)"
	}
	return c
}

// Leased returns the call of a proxy that stamps what carries nothing. It refuses
// a write without a fence: the lease isn't held then.
func (c Call) Leased() Call {
	c.leased = true
	c.tail = strings.TrimSuffix(c.tail, "false)")
	if !strings.HasSuffix(c.tail, "true)") {
		c.tail += "true)"
	}
	c.behindTail = c.tail + wrote
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

// of returns the call of the kind that a carrier wants.
func (c Call) of(by Carrier) Call {
	switch {
	case by.Reads:
		c.head, c.tail = c.readsHead, c.readsTail
	case by.Behind:
		c.tail = c.behindTail
	}
	return c
}

// Prepared is the text of the prepared check for carriers like this one: of a read
// or not, behind a statement or not. Its first parameter is the fence; NULL reads
// the session variable. A call that stamps has a second one, for where the
// variable has none either.
func (c Call) Prepared(by Carrier) string {
	c = c.of(by)
	if c.leased {
		return c.head + "COALESCE($1, " + stampedHead + "$2" + stampedTail + ")" + c.tail
	}
	return c.head + "$1" + c.tail
}

// Unprepared is the text of a check for one carrier, with the parameters that
// Parameters returns.
func (c Call) Unprepared(by Carrier) string {
	if c.observes || !by.demands() {
		return c.Prepared(by)
	}
	c = c.of(by)
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
	c = c.of(by)
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
