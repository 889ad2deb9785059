// Package sqlscan reads SQL text as PostgreSQL's lexer does: it finds the
// statements of a message, the fences in its comments, and says of each
// statement whether it must be checked and what it does to the session. Pure
// functions, no I/O; it imports nothing but fence.
//
// Where it cannot be sure it errs on the side of a check: what is unknown
// counts as a write. A text that PostgreSQL would refuse with a syntax error may
// give any result, since the server then runs no statement of that message.
package sqlscan

import (
	"bytes"

	"github.com/wirefence/wirefence/fence"
)

// Options is what the lexer must know of the session.
type Options struct {
	// EscapeStrings says that standard_conforming_strings is off: backslashes
	// escape in plain literals too.
	EscapeStrings bool
	// Encoding is the session's client_encoding.
	Encoding Encoding
	// DefaultResource is what a bare token stands for; "" allows none.
	DefaultResource fence.Resource
}

// Statement is one statement of a text.
type Statement struct {
	// Start and End are byte offsets: the first token's first byte, and just
	// past the last token (the semicolon is not part of it).
	Start, End int
	Verb       Verb
	// Write says that the statement must be checked.
	Write bool
	// Unfenceable is the name of a command that can't run behind a check, or
	// whose effect outlives the session ("CREATE INDEX CONCURRENTLY"), else "".
	Unfenceable string
	// TxBegin: BEGIN, START TRANSACTION.
	TxBegin bool
	// TxEnd: COMMIT, END, ROLLBACK, ABORT, with AND CHAIN too, and PREPARE
	// TRANSACTION: what follows is another transaction.
	TxEnd bool
	// LosesCheck: after ROLLBACK TO, RELEASE or RESET ALL a check made earlier in
	// the transaction may no longer count.
	LosesCheck bool
	// OwnTx: the statement runs or ends in a transaction of its own; a check
	// before it does not cover what follows.
	OwnTx bool
	// Procedural: CALL or DO, which may hold a COMMIT.
	Procedural bool
	// Target is the prepared statement or cursor to which PREPARE, EXECUTE,
	// DEALLOCATE, DECLARE, CLOSE, FETCH and MOVE refer, folded and unquoted; also
	// of the EXECUTE in an EXPLAIN or in a CREATE TABLE AS. It is "" if there is
	// none or ALL are meant, and where TargetUnclear says that the name can't be
	// told: U&"", more than 63 bytes, or beyond ASCII.
	Target        string
	TargetUnclear bool
	// Executes: EXECUTE, also where EXPLAIN or CREATE TABLE AS holds it.
	Executes bool
	// Setter: the statement may change the session variable wirefence.token.
	// The EXECUTE of a prepared statement is not marked, its PREPARE is.
	Setter bool
	// SetterCall: it is a Setter for more than a mention of the variable: it may
	// call a function that sets it, or hides what it calls.
	SetterCall bool
	// NoCheckBehind: a check can't stand behind it in its transaction, or there is
	// nothing to check. COPY FROM reads what comes next; a CALL, or a DO that may hold
	// a COMMIT, would run otherwise than alone, as would a DECLARE, which runs nothing
	// yet; others evaluate nothing; and a text that isn't finished has a syntax error.
	NoCheckBehind bool
	// DropsPrepared: all prepared statements of the session go.
	DropsPrepared bool
	// SetsLexing: the statement may change standard_conforming_strings or
	// client_encoding, so how the next message reads depends on its outcome.
	SetsLexing bool
}

// Result is what a text holds.
type Result struct {
	// Statements are those for which the server sends one CommandComplete each.
	Statements []Statement
	// Fence is the sum of the fences in all comments.
	Fence fence.Fence
	// FenceText is Fence.String(), made once where a comment is repeated from
	// scan to scan.
	FenceText string
	// FenceErr is a *fence.SyntaxError if a comment's fence is malformed or two
	// of them disagree.
	FenceErr error
	// HasBackslashInPlainString: some '…' literal holds a backslash, so the text
	// reads differently under the other standard_conforming_strings.
	HasBackslashInPlainString bool
}

// Scanner scans texts one after the other without allocating. The zero value is
// ready; it is not safe for concurrent use.
type Scanner struct {
	result Result
	text   []byte // what is lexed: the caller's text, or masked
	masked []byte // copy whose trail bytes are masked, for unsafe encodings
	opt    Options
	cat    *Catalog
	st     state
	found  mention // what the text mentions anywhere
	value  []byte  // unescaped value of a fence comment
	last   struct {
		value    []byte
		resource fence.Resource
		fence    fence.Fence
		text     string // of the fence
		target   string
	}
}

// maxKept bounds the buffers that a Scanner keeps between scans, in bytes.
const maxKept = 64 << 10

// Scan reads text up to its end or the first NUL. cat may be nil: then only a
// few built-in functions are known as harmless. The Result belongs to the
// Scanner and is valid until its next Scan; the text is not kept.
func (s *Scanner) Scan(text []byte, opt Options, cat *Catalog) *Result {
	statements := s.result.Statements[:0]
	if cap(statements) > 256 {
		statements = nil
	}
	s.result = Result{Statements: statements}
	s.opt, s.cat = opt, cat
	if n := bytes.IndexByte(text, 0); n >= 0 {
		text = text[:n]
	}
	s.text = s.mask(text)
	s.found = mentioned(s.text)
	s.st = state{}
	s.lex()
	s.finish()
	s.text = nil
	if cap(s.masked) > maxKept {
		s.masked = nil
	}
	return &s.result
}

// mask returns text, or, in an encoding with trail bytes that look like ASCII,
// a copy of the same length in which they don't. The server converts the text
// before it reads it, so it never takes such a byte for a quote or a backslash.
func (s *Scanner) mask(text []byte) []byte {
	if !s.opt.Encoding.unsafe() {
		return text
	}
	s.masked = append(s.masked[:0], text...)
	for i := 0; i < len(text); {
		n := s.opt.Encoding.charLen(text[i:])
		for j := i + 1; j < i+n; j++ {
			s.masked[j] |= 0x80
		}
		i += n
	}
	return s.masked
}
