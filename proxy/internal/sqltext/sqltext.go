// Package sqltext reads SQL text as PostgreSQL's lexer does. It finds the statements of a
// message and the fences in its comments, and tells by a statement's leading words whether
// a check can share its transaction. It has pure functions, does no I/O, and imports only
// fence.
//
// It doesn't ask what a statement does. A text with a syntax error may give any result,
// since the server runs no statement of that message.
package sqltext

import (
	"bytes"
	"encoding/binary"

	"github.com/wirefence/wirefence/fence"
)

// Options are the session's settings that the lexer needs.
type Options struct {
	// EscapeStrings says that standard_conforming_strings is off: backslashes
	// escape in plain literals too.
	EscapeStrings bool
	// Encoding is the session's client_encoding.
	Encoding Encoding
	// DefaultResource is the resource of a bare token; "" makes bare tokens malformed.
	DefaultResource fence.Resource
}

// Statement is one statement of a text.
type Statement struct {
	// Start and End are byte offsets: the first token's first byte, and just
	// past the last token (the semicolon is not part of it).
	Start, End int32
	// Class says whether a check can share the statement's transaction.
	Class Class
	Flags Flags
	// NameStart and NameEnd delimit the name in a DEALLOCATE, without its quotes; in lower case it
	// is the prepared statement's. Both are 0 without one, and for a name that is not ASCII or
	// has upper case or quotes between its quotes.
	NameStart, NameEnd int32
}

// Flags are further properties of a statement, by its words. A literal counts as a text that
// a function may run.
type Flags uint16

const (
	// SetsVariable: it names wirefence, so it may set the session variable wirefence.token.
	SetsVariable Flags = 1 << iota
	// CallsSetter: it is a SET of the variable, or names set_config.
	CallsSetter
	// Resets: RESET ALL or DISCARD ALL, which restore the session's first values.
	Resets
	// Unlocks: it names a function that can release the proxy's shared session-level
	// advisory locks, has DISCARD in a literal, or is DISCARD ALL.
	Unlocks
	// Stores: a PREPARE or DECLARE, whose text runs later.
	Stores
	// Runs: an EXECUTE, which runs such a text.
	Runs
	// Commits: COMMIT and END, of the class Ends.
	Commits
	// Chains: AND CHAIN.
	Chains
	// Imports: SET TRANSACTION SNAPSHOT.
	Imports
	// DropsPrepared: it drops all prepared statements of the session.
	DropsPrepared
	// Local: SET LOCAL, also as SELECT set_config(…, true) alone.
	Local
	// Cleans: it only removes what a session has left, as pools do between two users: DISCARD,
	// CLOSE, UNLISTEN, RESET, DEALLOCATE, SET SESSION AUTHORIZATION DEFAULT, or SELECT
	// pg_advisory_unlock_all() alone.
	Cleans

	// Locks: it names a function that takes or releases a session-level advisory lock.
	Locks

	// Renames: it may change application_name, and so the fence of a session whose name carries it.
	Renames

	// Sets: it does set the session variable, as far as its words tell.
	Sets = SetsVariable | CallsSetter
)

// Has reports whether all of these flags are set.
func (f Flags) Has(flags Flags) bool { return f&flags == flags }

// Result is the outcome of a Scan.
type Result struct {
	// Statements are the statements; the server sends one CommandComplete for each.
	Statements []Statement
	// Fence is the text of the merged fences of all comments, "" without one.
	Fence string
	// FenceErr is a *fence.SyntaxError if a comment's fence is malformed or two of them
	// disagree.
	FenceErr error
	// BySettings says that the text may read differently under another
	// standard_conforming_strings or client_encoding: a plain literal has a backslash, or
	// the text has a byte beyond ASCII.
	BySettings bool
}

// Scanner scans texts one after the other without allocating. The zero value is ready for
// use. It is not safe for concurrent use.
type Scanner struct {
	result Result
	first  fence.Fence   // of the text's comments
	others []fence.Fence // behind it
	text   []byte        // the caller's text, or masked
	masked []byte        // copy whose trail bytes are masked, for unsafe encodings
	opt    Options
	progress
	kept   []byte // of a text that comes in parts
	st     state
	next   *mention      // the next word with a meaning, which no token or comment has had
	nextAt int           // its offset, or the text's length
	folded [maxWord]byte // the first word of a statement
	last   struct {
		value    []byte
		resource fence.Resource
		fence    fence.Fence
		text     string // of the fence
	}
}

// maxKept bounds the buffers that a Scanner keeps between scans, in bytes.
const maxKept = 64 << 10

// Scan reads text up to its end or the first NUL. The Result belongs to the
// Scanner and is valid until its next Scan; the text is not kept.
func (s *Scanner) Scan(text []byte, opt Options) *Result {
	if n := bytes.IndexByte(text, 0); n >= 0 {
		text = text[:n]
	}
	s.begin(opt)
	s.more, s.in, s.goesOn = false, code, false
	s.result.BySettings = hasNonASCII(text)
	s.read(text, 0)
	s.merge()
	return &s.result
}

// Begin has the Scanner read a text whose parts ReadPart gets.
func (s *Scanner) Begin(opt Options) {
	s.begin(opt)
	s.progress, s.kept = progress{more: true}, nil
}

func (s *Scanner) begin(opt Options) {
	statements := s.result.Statements[:0]
	if cap(statements) > 256 {
		statements = nil
	}
	s.result, s.others, s.opt = Result{Statements: statements}, nil, opt
}

// ReadPart reads the next part of a text, in memory that doesn't grow with the text. It reports
// whether a comment has a fence, or what Scan takes for a malformed one; a comment counts without
// its end. The last token isn't read before what is behind it.
func (s *Scanner) ReadPart(part []byte) (fence bool) {
	text := append(s.kept, part...)
	s.result.Statements = s.result.Statements[:0]
	s.read(text, s.rest-s.keep)
	s.kept = bytes.Clone(text[s.keep:])
	return s.result.Fence != "" || s.result.FenceErr != nil
}

// read reads a text, or a part of one, from an offset on.
func (s *Scanner) read(text []byte, from int) {
	s.text, s.st = s.mask(text), state{}
	s.next, s.nextAt = allWords.next(s.text, 0)
	s.lex(from)
	s.finish()
	s.text = nil
	if cap(s.masked) > maxKept {
		s.masked = nil
	}
}

func hasNonASCII(text []byte) bool {
	for ; len(text) >= 8; text = text[8:] {
		if binary.NativeEndian.Uint64(text)&0x8080808080808080 != 0 {
			return true
		}
	}
	for _, c := range text {
		if c >= 0x80 {
			return true
		}
	}
	return false
}

// mask returns text, or, in an encoding whose trail bytes may look like ASCII, a copy in which they
// don't. The server converts the text before it lexes it, so it never takes such a byte for a quote
// or a backslash. A last character that may not be whole is left to the text's next part.
func (s *Scanner) mask(text []byte) []byte {
	if !s.opt.Encoding.unsafe() {
		return text
	}
	s.masked = append(s.masked[:0], text...)
	for i := 0; i < len(text); {
		n := s.opt.Encoding.charLen(text[i:])
		if s.more && text[i] >= 0x80 && i+n == len(text) {
			return s.masked[:i]
		}
		for j := i + 1; j < i+n; j++ {
			s.masked[j] |= 0x80
		}
		i += n
	}
	return s.masked
}
