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

// lex passes the tokens and comments of the text to their handlers, up to its end or a NUL.
func (s *Scanner) lex() {
	text := s.text
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case class[c]&isSpace != 0:
			i++
		case class[c]&isIdentStart != 0:
			i = s.lexWord(i)
		case class[c]&isDigit != 0:
			i = s.lexNumber(i)
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
	end := i + 1
	for end < len(text) && class[text[end]]&isIdent != 0 {
		end++
	}
	s.token(word, i, end)
	return end
}

// lexNumber reads digits, a fraction and an exponent. It reads letters behind them as a
// name, as PostgreSQL 14 does. To later versions they are an error or, as in 0x1F and
// 1_000, a part of the number, which makes no difference here.
func (s *Scanner) lexNumber(i int) int {
	text := s.text
	end := s.digits(i)
	if end < len(text) && text[end] == '.' && !(end+1 < len(text) && text[end+1] == '.') {
		end = s.digits(end + 1)
	}
	if end < len(text) && lower[text[end]] == 'e' {
		exp := end + 1
		if exp < len(text) && (text[exp] == '+' || text[exp] == '-') {
			exp++
		}
		if n := s.digits(exp); n > exp {
			end = n
		}
	}
	s.token(other, i, end)
	return end
}

func (s *Scanner) digits(i int) int {
	for i < len(s.text) && class[s.text[i]]&isDigit != 0 {
		i++
	}
	return i
}

func (s *Scanner) lineComment(i int) int {
	end := lineEnd(s.text, i+2)
	s.comment(i+2, end)
	return end
}

// lineEnd returns the offset of the newline that ends the line at i, or the text's end.
func lineEnd(text []byte, i int) int {
	for i < len(text) && !endsLine(text[i]) {
		i++
	}
	return i
}

func endsLine(c byte) bool { return c == '\n' || c == '\r' }

// blockComment reads a comment, which may hold others. A fence counts in its own
// text only; in a comment inside it a fence is an error.
func (s *Scanner) blockComment(start int) int {
	text := s.text
	depth, from := 1, start+2 // from is where the comment's own text began, or the comment in it
	for i := start + 2; i+1 < len(text); i++ {
		switch {
		case text[i] == '/' && text[i+1] == '*':
			if depth == 1 {
				s.comment(from, i)
				from = i + 2
			}
			depth++
			i++
		case text[i] == '*' && text[i+1] == '/':
			depth--
			switch depth {
			case 0:
				s.comment(from, i)
				return i + 2
			case 1:
				s.innerComment(from, i)
				from = i + 2
			}
			i++
		}
	}
	return s.unterminated(start)
}

// unterminated skips the rest: the server answers with a syntax error.
func (s *Scanner) unterminated(from int) int {
	s.token(other, from, len(s.text))
	return len(s.text)
}

// lexString reads a literal that starts at start and whose quote is at i. A
// literal goes on over a line end to the next quote, in the same manner.
func (s *Scanner) lexString(start, i int, escapes bool, k kind) int {
	text := s.text
	for {
		end := s.quoteEnd(i+1, escapes)
		if end < 0 {
			s.result.BySettings = s.result.BySettings || text[start] == '\'' && bytes.IndexByte(text[i:], '\\') >= 0
			return s.unterminated(start)
		}
		if text[start] == '\'' && bytes.IndexByte(text[i:end], '\\') >= 0 {
			s.result.BySettings, k = true, escaped
		}
		next := s.continued(end)
		if next < 0 {
			s.token(k, start, end)
			return end
		}
		// The comments in between are comments.
		s.note(escaped, i, end)
		for j := end; j < next; j++ {
			if text[j] == '-' {
				j = s.lineComment(j)
			}
		}
		i, k = next, escaped
	}
}

// quoteEnd returns the offset past the quote that ends a literal whose text
// begins at i, or -1.
func (s *Scanner) quoteEnd(i int, escapes bool) int {
	text, stops := s.text, `'`
	if escapes {
		stops = `'\`
	}
	for i < len(text) {
		n := bytes.IndexAny(text[i:], stops)
		if n < 0 {
			break
		}
		if i += n; text[i] == '\'' && (i+1 == len(text) || text[i+1] != '\'') {
			return i + 1
		}
		i += 2 // an escape, or a doubled quote
	}
	return -1
}

// continued returns the offset of the quote that continues a literal which ends at i, or
// -1. Only blanks with a line end among them and line comments may stand between.
func (s *Scanner) continued(i int) int {
	text := s.text
	for line := false; i < len(text); i++ {
		switch {
		case class[text[i]]&isSpace != 0:
			line = line || endsLine(text[i])
		case text[i] == '-' && i+1 < len(text) && text[i+1] == '-':
			i = lineEnd(text, i) - 1
		case text[i] == '\'' && line:
			return i
		default:
			return -1
		}
	}
	return -1
}

// lexQuoted reads a quoted name that starts at start and whose quote is at i.
func (s *Scanner) lexQuoted(start, i int) int {
	text := s.text
	for i++; ; i += 2 {
		n := bytes.IndexByte(text[i:], '"')
		if n < 0 {
			return s.unterminated(start)
		}
		if i += n; i+1 >= len(text) || text[i+1] != '"' {
			s.token(quoted, start, i+1)
			return i + 1
		}
	}
}

// lexDollar reads $1, a dollar-quoted literal, or a lone dollar sign.
func (s *Scanner) lexDollar(i int) int {
	text := s.text
	end := i + 1
	if end < len(text) && class[text[end]]&isDigit != 0 {
		end = s.digits(end)
		s.token(param, i, end)
		return end
	}
	for end < len(text) && text[end] != '$' && class[text[end]]&isIdent != 0 {
		end++
	}
	if end >= len(text) || text[end] != '$' {
		s.token(other, i, i+1)
		return i + 1
	}
	end++
	tag := text[i:end]
	n := bytes.Index(text[end:], tag)
	if n < 0 {
		return s.unterminated(i)
	}
	end += n + len(tag)
	s.token(literal, i, end)
	return end
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
			return s.lineComment(i)
		}
	case '/':
		if next == '*' {
			return s.blockComment(i)
		}
	case '.':
		if class[next]&isDigit != 0 {
			return s.lexNumber(i)
		}
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
