// Package sqltext reads SQL text as PostgreSQL's lexer does: it finds the
// statements of a message, the fences in its comments, and by the leading words of
// each statement where a check can stand beside it. Pure functions, no I/O; it
// imports nothing but fence.
//
// It does not ask what a statement does. A text that PostgreSQL would refuse with a
// syntax error may give any result, since the server then runs no statement of that
// message.
package sqltext

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
	// Class says where a check can stand beside the statement.
	Class Class
	Flags Flags
	// NameStart and NameEnd delimit the name that a PREPARE or DECLARE gives, where it
	// is a plain word; both are 0 where it isn't.
	NameStart, NameEnd int
}

// Flags say what else a statement's words tell.
type Flags uint32

const (
	// SetsVariable: the statement names what may change the session variable
	// wirefence.token.
	SetsVariable Flags = 1 << iota
	// Resets: RESET ALL or DISCARD ALL, which bring back what the session began with.
	Resets
	// Unlocks: it names what releases session-level advisory locks.
	Unlocks
	// Executes: it names EXECUTE, or is a FETCH or MOVE: it may run a prepared
	// statement or a cursor, whose text is another.
	Executes
	// Stores: a PREPARE or DECLARE, whose text runs later.
	Stores
	// Renames: a DO whose text names PREPARE, and may give any name another statement.
	Renames
	// Commits: COMMIT and END, of the class Ends.
	Commits
	// Chains: AND CHAIN.
	Chains
	// Imports: SET TRANSACTION SNAPSHOT.
	Imports
	// DropsPrepared: all prepared statements of the session go.
	DropsPrepared
	// NamesReadOnly: it names transaction_read_only.
	NamesReadOnly
	// Defines: CREATE or ALTER, whose text may be stored in the database.
	Defines
	// Local: SET LOCAL, or one call of set_config whose last argument is true.
	Local
)

// Has reports whether all of these flags are set.
func (f Flags) Has(flags Flags) bool { return f&flags == flags }

// Result is what a text holds.
type Result struct {
	// Statements are those for which the server sends one CommandComplete each.
	Statements []Statement
	// Fence is the text of the sum of the fences in all comments, "" if there is none.
	Fence string
	// FenceErr is a *fence.SyntaxError if a comment's fence is malformed or two
	// of them disagree, and an *UnknownSettingError if a setting is named that
	// looks like a fence and isn't.
	FenceErr error
	// BySettings says that the text may read differently under another
	// standard_conforming_strings or client_encoding: a plain literal holds a
	// backslash, or the text a byte beyond ASCII.
	BySettings bool
	// Backslash says that a plain literal holds one.
	Backslash bool
}

// Scanner scans texts one after the other without allocating. The zero value is
// ready; it is not safe for concurrent use.
type Scanner struct {
	result    Result
	sum       fence.Fence
	backslash bool   // some plain literal holds one
	text      []byte // what is lexed: the caller's text, or masked
	masked    []byte // copy whose trail bytes are masked, for unsafe encodings
	opt       Options
	st        state
	found     mention // what the text mentions anywhere
	value     []byte  // unescaped value of a fence comment
	setting   []byte  // name of what a statement sets
	last      struct {
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
	statements := s.result.Statements[:0]
	if cap(statements) > 256 {
		statements = nil
	}
	s.result, s.sum, s.backslash = Result{Statements: statements}, fence.Fence{}, false
	s.opt = opt
	if n := bytes.IndexByte(text, 0); n >= 0 {
		text = text[:n]
	}
	s.text = s.mask(text)
	s.found = mentioned(s.text)
	s.st = state{}
	s.lex()
	s.finish()
	s.result.Backslash = s.backslash
	s.result.BySettings = s.backslash || hasNonASCII(text)
	s.text = nil
	if cap(s.masked) > maxKept {
		s.masked = nil
	}
	return &s.result
}

func hasNonASCII(text []byte) bool {
	for _, c := range text {
		if c >= 0x80 {
			return true
		}
	}
	return false
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
