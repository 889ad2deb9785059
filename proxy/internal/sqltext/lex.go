package sqltext

import "bytes"

// kind is the kind of a token.
type kind uint8

const (
	other   kind = iota // a number, an operator, what the server refuses
	word                // an unquoted name or a keyword
	quoted              // "…"
	literal             // '…', B'', X'', $tag$…$tag$
	escaped             // a literal whose characters may be other than written: E'…', U&'…', with a backslash, or continued on another line
	param
	dot
	comma
	open
	closing
	semicolon
)

const (
	isIdentStart = 1 << iota
	isIdent
	isDigit
	isSpace
)

// class gives the lexer's classes of a byte, as in the server's scan.l. \v is a
// space from PostgreSQL 16 on and an error before.
var class = func() (t [256]uint8) {
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-'a'+'A'] = isIdentStart|isIdent, isIdentStart|isIdent
	}
	for c := 0x80; c <= 0xff; c++ {
		t[c] = isIdentStart | isIdent
	}
	t['_'], t['$'] = isIdentStart|isIdent, isIdent
	for c := '0'; c <= '9'; c++ {
		t[c] = isIdent | isDigit
	}
	for _, c := range " \t\f\v\n\r" {
		t[c] = isSpace
	}
	return t
}()

// place is the construct that goes on in a text's next part.
type place uint8

const (
	code place = iota
	longWord
	quotation // a literal or a quoted name
	dollarQuotation
	lineComment
	blockComment
)

// progress is how far a text was read. Between the parts of one that comes in parts, only in and the
// fields behind it count.
type progress struct {
	more   bool   // the text goes on behind its end
	goesOn bool   // the last token is a literal, which another one may continue
	line   bool   // there was a line end behind it
	in     place  // where the next part begins
	stops  string // of a quotation: its quote, and a backslash if that escapes
	plain  bool   // it is a literal without a prefix, so that a setting tells that
	depth  int    // of a block comment
	tag    []byte // of a dollar-quoted literal, with its dollar signs

	// The text from keep on is read again with the next part, from rest on.
	keep, rest int
}

// maxShort is the length in bytes of the longest word that is read again with a text's next part,
// and maxOverlap that of the end of a comment, so that a key and its value may be far apart.
const (
	maxShort   = 64
	maxOverlap = 512
)

// lex passes the tokens and comments of the text, from an offset on, to their handlers.
func (s *Scanner) lex(i int) {
	text := s.text
	s.keep, s.rest = len(text), len(text)
	switch s.in {
	case longWord:
		if i = wordEnd(text, i); i < len(text) {
			s.in = code
		}
	case quotation:
		i = s.lexQuotation(0, i, escaped)
	case dollarQuotation:
		i = s.lexDollarQuoted(0, i)
	case lineComment:
		i = s.lexLineComment(0, i)
	case blockComment:
		i = s.lexBlockComment(0, 0, i)
	}
	for i < len(text) {
		c := text[i]
		switch {
		case class[c]&isSpace != 0:
			if endsLine(c) {
				s.line = true
			}
			i++
		case class[c]&isIdentStart != 0:
			i = s.lexWord(i)
		case class[c]&isDigit != 0:
			end := wordEnd(text, i) // of a number, or its digits ahead of a point
			s.token(other, i, end)
			i = end
		case c == '\'':
			i = s.lexString(i, i, s.opt.EscapeStrings, literal)
		case c == '"':
			i = s.lexQuoted(i, i)
		case c == '$':
			i = s.lexDollar(i)
		default:
			i = s.lexOther(i)
		}
	}
}

// lexWord reads a name, or the literal that a prefix letter begins.
func (s *Scanner) lexWord(i int) int {
	text := s.text
	if i+1 < len(text) && text[i+1] == '\'' {
		switch text[i] {
		case 'e', 'E':
			return s.lexString(i, i+1, true, escaped)
		case 'b', 'B', 'x', 'X':
			return s.lexString(i, i+1, false, literal)
		}
	}
	if (text[i] == 'u' || text[i] == 'U') && i+2 < len(text) && text[i+1] == '&' {
		switch text[i+2] {
		case '\'': // an error where standard_conforming_strings is off
			return s.lexString(i, i+2, false, escaped)
		case '"':
			return s.lexQuoted(i, i+2)
		}
	}
	end := wordEnd(text, i+1)
	s.token(word, i, end)
	return end
}

func wordEnd(text []byte, i int) int {
	for i < len(text) && class[text[i]]&isIdent != 0 {
		i++
	}
	return i
}

func endsLine(c byte) bool { return c == '\n' || c == '\r' }

// lexLineComment reads a comment, whose own text began at from, from i on.
func (s *Scanner) lexLineComment(from, i int) int {
	for i < len(s.text) && !endsLine(s.text[i]) {
		i++
	}
	s.comment(from, i)
	s.in = code
	if s.more && i == len(s.text) {
		s.commentGoesOn(lineComment, from, i)
	}
	return i
}

// lexBlockComment reads a comment from i on, which may hold others. A fence counts in its own text
// only; in a comment inside it a fence is an error. from is where the comment's own text began,
// or the comment in it.
func (s *Scanner) lexBlockComment(start, from, i int) int {
	text := s.text
	for s.goesOn = false; i+1 < len(text); i++ {
		switch {
		case text[i] == '/' && text[i+1] == '*':
			if s.depth == 1 {
				s.comment(from, i)
				from = i + 2
			}
			s.depth++
			i++
		case text[i] == '*' && text[i+1] == '/':
			s.depth--
			switch s.depth {
			case 0:
				s.comment(from, i)
				s.in = code
				return i + 2
			case 1:
				s.innerComment(from, i)
				from = i + 2
			}
			i++
		}
	}
	if !s.more {
		return s.unterminated(start)
	}
	if s.depth == 1 {
		s.comment(from, len(text))
	} else {
		s.innerComment(from, len(text))
	}
	return s.commentGoesOn(blockComment, from, min(i, len(text)))
}

// commentGoesOn keeps the end of a comment whose text began at from, so that a key in it is read
// as a whole.
func (s *Scanner) commentGoesOn(in place, from, rest int) int {
	s.in, s.rest = in, rest
	s.keep = max(from, rest-maxOverlap)
	for s.keep > from && s.keep < rest && isKeyByte[s.text[s.keep]] {
		s.keep++
	}
	return len(s.text)
}

// unterminated skips the rest: the server answers with a syntax error.
func (s *Scanner) unterminated(from int) int {
	s.token(other, from, len(s.text))
	return len(s.text)
}

// lexString reads a literal that starts at start and whose quote is at i. Without a prefix, on another
// line than the end of the last literal, and with nothing but comments of a line between, it continues
// that one, in the same manner.
func (s *Scanner) lexString(start, i int, escapes bool, k kind) int {
	if s.goesOn && s.line && start == i {
		return s.lexQuotation(start, i+1, escaped)
	}
	s.stops, s.plain = `'`, start == i
	if escapes {
		s.stops = `'\`
	}
	return s.lexQuotation(start, i+1, k)
}

// lexQuoted reads a quoted name that starts at start and whose quote is at i.
func (s *Scanner) lexQuoted(start, i int) int {
	s.stops, s.plain = `"`, false
	return s.lexQuotation(start, i+1, quoted)
}

// lexQuotation reads a literal or a quoted name from i on.
func (s *Scanner) lexQuotation(start, i int, k kind) int {
	end, ended := s.quoteEnd(i)
	if !ended && s.more {
		s.in, s.keep, s.rest = quotation, end, end
		return len(s.text)
	}
	s.in = code
	if s.plain && bytes.IndexByte(s.text[i:end], '\\') >= 0 {
		s.result.BySettings, k = true, escaped
	}
	if !ended {
		return s.unterminated(start)
	}
	s.token(k, start, end)
	s.goesOn, s.line = k != quoted, false
	return end
}

// quoteEnd returns the offset past the quote that ends a literal or a quoted name which goes on at
// i. ended is false if none does; then end is where its next part begins.
func (s *Scanner) quoteEnd(i int) (end int, ended bool) {
	for text := s.text; i < len(text); i += 2 { // an escape, or a doubled quote
		n := bytes.IndexAny(text[i:], s.stops)
		if n < 0 {
			break
		}
		i += n
		switch last := i+1 == len(text); {
		case last && s.more:
			return i, false
		case text[i] == s.stops[0] && (last || text[i+1] != text[i]):
			return i + 1, true
		}
	}
	return len(s.text), false
}

// lexDollar reads $1, a dollar-quoted literal, or a dollar sign that the server refuses.
func (s *Scanner) lexDollar(i int) int {
	text := s.text
	end := i + 1
	if end < len(text) && class[text[end]]&isDigit != 0 {
		end = wordEnd(text, end)
		s.token(param, i, end)
		return end
	}
	for end < len(text) && text[end] != '$' && class[text[end]]&isIdent != 0 {
		end++
	}
	if end == len(text) || text[end] != '$' {
		s.token(other, i, end)
		return end
	}
	s.tag = append(s.tag[:0], text[i:end+1]...)
	return s.lexDollarQuoted(i, end+1)
}

// lexDollarQuoted reads a dollar-quoted literal from i on.
func (s *Scanner) lexDollarQuoted(start, i int) int {
	n := bytes.Index(s.text[i:], s.tag)
	end := i + n + len(s.tag)
	switch {
	case n >= 0 && (end < len(s.text) || !s.more):
		s.in = code
		s.token(literal, start, end)
		return end
	case s.more:
		s.in, s.keep = dollarQuotation, max(i, len(s.text)-len(s.tag))
		s.rest = s.keep
		return len(s.text)
	}
	return s.unterminated(start)
}

// lexOther reads a comment, or one character of what has no other meaning. An operator ends
// where a comment begins, so its characters may stand alone.
func (s *Scanner) lexOther(i int) int {
	next := byte(0)
	if i+1 < len(s.text) {
		next = s.text[i+1]
	}
	k := other
	switch s.text[i] {
	case '-':
		if next == '-' {
			return s.lexLineComment(i+2, i+2)
		}
	case '/':
		if next == '*' {
			s.depth = 1
			return s.lexBlockComment(i, i+2, i+2)
		}
	case '.':
		k = dot
	case '(':
		k = open
	case ')':
		k = closing
	case ',':
		k = comma
	case ';':
		k = semicolon
	}
	s.token(k, i, i+1)
	return i + 1
}
