package session

import (
	"encoding/hex"
	"strconv"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/policy"
)

// checkKind is a kind of check, by its SQL.
type checkKind uint8

const (
	fullCheck     checkKind = iota // by wirefence.check
	missingCheck                   // without the schema: fails if the session variable holds a fence
	readOnlyCheck                  // for a transaction without a fence that must not write
	holdingCheck                   // by wirefence.proxy_hold
	kinds
)

// checkNames end the names of the prepared checks.
var checkNames = [kinds]string{"_check", "_missing", "_read_only", "_hold"}

// The manners of proxy_hold: ahead of a statement, in an exchange, in an exchange for a
// statement that needs the hold, and in one that only asks.
const (
	grouped    = "group"
	exchanging = "exchange"
	needing    = "needed"
	observing  = "observe"
)

// missingSchema is the SQLSTATE of a failed missingCheck: undefined_object, since it reads
// a setting that doesn't exist.
const missingSchema = "42704"

const (
	readOnlySQL = "CASE WHEN pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'off' THEN pg_catalog.set_config('transaction_read_only', 'on', true) END"
	carriedSQL  = "pg_catalog.current_setting('wirefence.token', true)"
	missingHead = "SELECT CASE WHEN COALESCE(" + carriedSQL + ", '') OPERATOR(pg_catalog.<>) '' THEN pg_catalog.current_setting('wirefence.schema') ELSE "
	// A stamp counts where the session carries nothing itself.
	stampedHead = "CASE WHEN wirefence.carried() IS NULL THEN "
	stampedTail = " END"
)

// call builds the SQL that calls wirefence's functions.
type call struct {
	tail     string // behind the fence, of a check
	flag     string // whether a fence is required, as SQL
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
	return call{
		tail:     ", " + resource + ", " + strconv.FormatBool(required) + ", " + strconv.FormatBool(shadow) + ")",
		flag:     strconv.FormatBool(required),
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
// last two of a holdingCheck are the number of the session's hold, and what it holds.
func (c call) prepared(kind checkKind) string {
	fence, number, held := "$1", "$2", "$3"
	if c.leased {
		fence, number, held = "COALESCE($1, "+stampedHead+"$2"+stampedTail+")", "$3", "$4"
	}
	switch kind {
	case fullCheck:
		return "SELECT wirefence.check(" + fence + c.tail
	case holdingCheck:
		return "SELECT wirefence.proxy_hold(" + number + ", " + fence + ", " + c.resource + ", " + held + ", " + c.flag + ", '" + grouped + "')"
	}
	return c.other(kind)
}

// parameters returns the n parameters of a prepared check. They point into by, number and
// held; nil is NULL.
func (c call) parameters(kind checkKind, by *policy.Carrier, number, held *string) (params [4]*string, n int) {
	if kind != fullCheck && kind != holdingCheck {
		return params, 0
	}
	n = 1
	if c.leased {
		n = 2
	}
	if kind == holdingCheck {
		params[n], params[n+1] = number, held
		n += 2
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

// appendProxyHold appends the statement that takes a hold, without a semicolon. has says
// what the session holds already, as an SQL literal.
func (c call) appendProxyHold(dst []byte, number int32, by *policy.Carrier, has, manner string) []byte {
	dst = appendNumber(append(dst, "SELECT wirefence.proxy_hold("...), number)
	dst = appendFence(append(dst, ", "...), by)
	for _, argument := range [...]string{c.resource, has, c.flag, "'" + manner + "'"} {
		dst = append(append(dst, ", "...), argument...)
	}
	return append(dst, ')')
}

// appendNumber appends the number of a hold as a literal: another proxy takes these calls
// for what they are if they have nothing to compute.
func appendNumber(dst []byte, number int32) []byte {
	return append(strconv.AppendInt(append(dst, '\''), int64(number), 10), '\'')
}

// literalOrNull returns a word as an SQL literal.
func literalOrNull(word *string) string {
	if word == nil {
		return "NULL"
	}
	return "'" + *word + "'"
}

// appendUnhold appends the statement that gives a hold back: its locks if they are known,
// otherwise all that the server finds under this number.
func appendUnhold(dst []byte, number int32, locks []*heldLock) []byte {
	dst = appendNumber(append(dst, "SELECT wirefence.proxy_unhold("...), number)
	if len(locks) == 0 {
		return append(dst, ", NULL)"...)
	}
	dst = append(dst, ", '{"...)
	for i, lock := range locks {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, lock.key.key, 10)
	}
	return append(dst, "}')"...)
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
