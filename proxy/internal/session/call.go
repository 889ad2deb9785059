package session

import (
	"encoding/hex"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/policy"
)

// checkKind is a kind of check, by its SQL.
type checkKind uint8

const (
	fullCheck     checkKind = iota // by wirefence.check
	missingCheck                   // without the schema: fails if the session variable holds a fence
	readOnlyCheck                  // for a transaction without a fence that must not write
	holdingCheck                   // by wirefence.hold_or_check
	kinds
)

// checkNames are the names of the prepared checks.
var checkNames = [kinds]string{"_wirefence_check", "_wirefence_missing", "_wirefence_read_only", "_wirefence_hold"}

// missingSchema is the SQLSTATE of a failed missingCheck: undefined_object, since it reads
// a setting that doesn't exist.
const missingSchema = "42704"

const (
	readOnlySQL = "pg_catalog.set_config('transaction_read_only', 'on', true)"
	carriedSQL  = "pg_catalog.current_setting('wirefence.token', true)"
	missingHead = "SELECT CASE WHEN COALESCE(" + carriedSQL + ", '') OPERATOR(pg_catalog.<>) '' THEN pg_catalog.current_setting('wirefence.schema') ELSE "
	// A stamp counts where the session variable holds nothing.
	stampedHead = "CASE WHEN " + carriedSQL + " OPERATOR(pg_catalog.<>) '' THEN NULL ELSE "
	stampedTail = " END"
)

// call builds the SQL that calls wirefence's functions.
type call struct {
	tail     string // behind the fence, of a check
	hold     string // behind what the session holds, of a hold_or_check
	resource string // of a bare token, as SQL
	required bool
	leased   bool
}

// newCall returns the calls for a proxy's policy: def is the resource of a bare token,
// required makes transactions without a fence READ ONLY, and shadow only reports.
func newCall(def fence.Resource, required, shadow, leased bool) call {
	resource := "NULL"
	if def != "" {
		resource = literal(string(def))
	}
	flag := map[bool]string{false: ", false", true: ", true"}
	return call{
		tail:     ", " + resource + flag[required] + flag[shadow] + ")",
		hold:     flag[required] + ")",
		resource: resource, required: required, leased: leased,
	}
}

// literal returns an SQL expression for the text that doesn't depend on
// standard_conforming_strings or client_encoding.
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

// other returns the SQL of a missingCheck or readOnlyCheck.
func (c call) other(kind checkKind) string {
	switch {
	case kind == readOnlyCheck:
		return "SELECT " + readOnlySQL
	case c.required:
		return missingHead + readOnlySQL + " END"
	}
	return missingHead + "NULL END"
}

// prepared returns the text of a prepared check. The first parameter of a fullCheck is the
// fence; NULL reads the session variable. With a lease the second one is the stamp. The
// last one of a holdingCheck says what the session holds.
func (c call) prepared(kind checkKind) string {
	fence, held := "$1", "$2"
	if c.leased {
		fence, held = "COALESCE($1, "+stampedHead+"$2"+stampedTail+")", "$3"
	}
	switch kind {
	case fullCheck:
		return "SELECT wirefence.check(" + fence + c.tail
	case holdingCheck:
		return "SELECT wirefence.hold_or_check(" + fence + ", " + c.resource + ", " + held + c.hold
	}
	return c.other(kind)
}

// parameters returns the n parameters of a prepared check. They point into by and held;
// nil is NULL.
func (c call) parameters(kind checkKind, by *policy.Carrier, held *string) (params [3]*string, n int) {
	if kind != fullCheck && kind != holdingCheck {
		return params, 0
	}
	n = 1
	if c.leased {
		n = 2
	}
	if kind == holdingCheck {
		params[n] = held
		n++
	}
	switch {
	case by.Comment != "":
		params[0] = &by.Comment
	case by.Stamp != "" && !by.Variable:
		params[0] = &by.Stamp
	case by.Stamp != "":
		params[1] = &by.Stamp
	}
	return params, n
}

// appendCheck appends a check as a statement of its own, without a semicolon.
func (c call) appendCheck(dst []byte, kind checkKind, by *policy.Carrier) []byte {
	if kind != fullCheck {
		return append(dst, c.other(kind)...)
	}
	dst = appendFence(append(dst, "SELECT wirefence.check("...), by)
	return append(dst, c.tail...)
}

// appendHold appends the statement that takes a hold and reads the session variable. has
// says what the session holds; with nil the server looks into pg_locks.
func (c call) appendHold(dst []byte, by *policy.Carrier, has *string) []byte {
	dst = c.appendHeld(append(dst, "SELECT wirefence.hold("...), by, has)
	return append(dst, "), "+carriedSQL...)
}

// appendHoldOrCheck appends a holdingCheck as a statement of its own, without a
// semicolon.
func (c call) appendHoldOrCheck(dst []byte, by *policy.Carrier, has *string) []byte {
	dst = c.appendHeld(append(dst, "SELECT wirefence.hold_or_check("...), by, has)
	return append(dst, c.hold...)
}

func (c call) appendHeld(dst []byte, by *policy.Carrier, has *string) []byte {
	dst = append(append(append(appendFence(dst, by), ", "...), c.resource...), ", "...)
	if has == nil {
		return append(dst, "NULL"...)
	}
	return append(append(append(dst, '\''), *has...), '\'')
}

// appendGiveBack appends the statement that gives back a hold that the session has for
// certain.
func (c call) appendGiveBack(dst []byte, by *policy.Carrier) []byte {
	dst = appendFence(append(dst, "SELECT wirefence.unhold("...), by)
	return append(append(append(dst, ", "...), c.resource...), ')')
}

// appendBeforeHold appends the query that tells why a fence can't be held.
func (c call) appendBeforeHold(dst []byte, by *policy.Carrier) []byte {
	dst = appendFence(append(dst, "SELECT wirefence.before_hold("...), by)
	return append(append(append(dst, ", "...), c.resource...), ')')
}

// appendFence appends the fence of a carrier as an expression. The text of a fence
// holds neither quotes nor backslashes.
func appendFence(dst []byte, by *policy.Carrier) []byte {
	switch {
	case by.Comment != "":
		return append(append(append(dst, '\''), by.Comment...), '\'')
	case by.Stamp != "" && !by.Variable:
		return append(append(append(dst, '\''), by.Stamp...), '\'')
	case by.Stamp != "":
		dst = append(append(append(append(dst, stampedHead...), '\''), by.Stamp...), '\'')
		return append(dst, stampedTail...)
	}
	return append(dst, "NULL"...)
}
