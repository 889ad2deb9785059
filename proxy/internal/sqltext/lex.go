package sqltext

import "bytes"

// kind is the kind of a token.
type kind uint8

const (
	none    kind = iota
	word         // an unquoted name or a keyword
	quoted       // "…"
	unicode      // U&"…": its letters may be escaped
	literal      // '…', B'', X'', $tag$…$tag$
	escaped      // E'…', U&'…', or a literal continued on another line: its characters are not as written
	number
	param
	operator
	cast // ::
	dot
	comma
	open
	closing
	semicolon
	other
)

const (
	isIdentStart = 1 << iota
	isIdent
	isDigit
	isOperator
	isSpace
	isBlank // a space that does not end a line
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
	for _, c := range "~!@#^&|`?+-*/%<>=" {
		t[c] = isOperator
	}
	for _, c := range " \t\f\v" {
		t[c] = isSpace | isBlank
	}
	t['\n'], t['\r'] = isSpace, isSpace
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
		case class[c]&isOperator != 0:
			i = s.lexOperator(i)
		case c == '\'':
			i = s.lexString(i, i, s.opt.EscapeStrings, literal)
		case c == '"':
			i = s.lexQuoted(i, i, quoted)
		case c == '$':
			i = s.lexDollar(i)
		default:
			i = s.lexPunctuation(i)
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
			return s.lexQuoted(i, i+2, unicode)
		}
	}
	end := i + 1
	for end < len(text) && class[text[end]]&isIdent != 0 {
		end++
	}
	s.word(i, end)
	return end
}

// lexNumber reads digits, a fraction and an exponent. It reads letters behind them as a
// name, as PostgreSQL 14 does. To later versions they are an error or, as in 0x1F and
// 1_000, a part of the number, which makes no difference here.
func (s *Scanner) lexNumber(i int) int {
	text := s.text
	end := s.digits(i)
	if text[i] == '.' {
		end = s.digits(i + 1)
	} else if end < len(text) && text[end] == '.' && !(end+1 < len(text) && text[end+1] == '.') {
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
	s.token(number, i, end)
	return end
}

func (s *Scanner) digits(i int) int {
	for i < len(s.text) && class[s.text[i]]&isDigit != 0 {
		i++
	}
	return i
}

// lexOperator reads a comment or an operator. An operator ends where a comment
// begins, and before a trailing + or - unless it holds one of ~!@#^&|`?%.
func (s *Scanner) lexOperator(i int) int {
	text := s.text
	end, special := i, false
	for ; end < len(text) && class[text[end]]&isOperator != 0; end++ {
		if end+1 < len(text) && (text[end] == '-' && text[end+1] == '-' || text[end] == '/' && text[end+1] == '*') {
			break
		}
		switch text[end] {
		case '~', '!', '@', '#', '^', '&', '|', '`', '?', '%':
			special = true
		}
	}
	if end == i {
		if text[i] == '-' {
			return s.lineComment(i)
		}
		return s.blockComment(i)
	}
	for !special && end > i+1 && (text[end-1] == '+' || text[end-1] == '-') {
		end--
	}
	s.token(operator, i, end)
	return end
}

func (s *Scanner) lineComment(i int) int {
	end := lineEnd(s.text, i+2)
	s.comment(s.text[i+2 : end])
	return end
}

// lineEnd returns the offset of the newline that ends the line at i, or the text's end.
func lineEnd(text []byte, i int) int {
	for i < len(text) && text[i] != '\n' && text[i] != '\r' {
		i++
	}
	return i
}

// blockComment reads a comment, which may hold others. A fence counts in its own
// text only; in a comment inside it a fence is an error.
func (s *Scanner) blockComment(i int) int {
	text := s.text
	start, depth, from, inner := i, 1, i+2, 0
	for i += 2; i+1 < len(text); i++ {
		switch {
		case text[i] == '/' && text[i+1] == '*':
			if depth == 1 {
				s.comment(text[from:i])
			}
			if depth == 1 {
				inner = i
			}
			depth++
			i++
		case text[i] == '*' && text[i+1] == '/':
			depth--
			i++
			if depth == 0 {
				s.comment(text[from : i-1])
				return i + 1
			}
			if depth == 1 {
				s.innerComment(text[inner+2 : i-1])
				from = i + 1
			}
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
		if escapes && text[start] == '\'' && !s.backslash {
			rest := text[i+1:]
			if end >= 0 {
				rest = text[i+1 : end]
			}
			s.backslash = bytes.IndexByte(rest, '\\') >= 0
		}
		if end < 0 {
			return s.unterminated(start)
		}
		next := s.continued(end)
		if next < 0 {
			s.token(k, start, end)
			return end
		}
		// The comments in between are comments.
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
	text := s.text
	for i < len(text) {
		n := bytes.IndexByte(text[i:], '\'')
		if n < 0 {
			return -1
		}
		quote := i + n
		if escapes {
			if i = escapesEnd(text, i, quote); i > quote {
				continue // the quote is escaped
			}
		} else if !s.backslash {
			s.backslash = bytes.IndexByte(text[i:quote], '\\') >= 0
		}
		if i = quote + 1; i >= len(text) || text[i] != '\'' {
			return i
		}
		i++
	}
	return -1
}

// escapesEnd skips the escapes in text[i:end] and returns end, or end+1 if the
// last of them escapes the byte at end.
func escapesEnd(text []byte, i, end int) int {
	for i < end {
		back := bytes.IndexByte(text[i:end], '\\')
		if back < 0 {
			return end
		}
		i += back + 2
	}
	return i
}

// continued returns the offset of the quote that continues a literal which ends at i, or
// -1. Only blanks with a line end among them and line comments may stand between.
func (s *Scanner) continued(i int) int {
	text := s.text
	lines := 0
	for i < len(text) {
		switch {
		case class[text[i]]&isSpace != 0:
			if class[text[i]]&isBlank == 0 {
				lines++
			}
			i++
		case text[i] == '-' && i+1 < len(text) && text[i+1] == '-':
			i = lineEnd(text, i)
		case text[i] == '\'' && lines > 0:
			return i
		default:
			return -1
		}
	}
	return -1
}

// lexQuoted reads a quoted name that starts at start and whose quote is at i.
func (s *Scanner) lexQuoted(start, i int, k kind) int {
	text := s.text
	for i++; ; i += 2 {
		n := bytes.IndexByte(text[i:], '"')
		if n < 0 {
			return s.unterminated(start)
		}
		if i += n; i+1 >= len(text) || text[i+1] != '"' {
			s.name(k, start, i+1)
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

func (s *Scanner) lexPunctuation(i int) int {
	text := s.text
	end := i + 1
	k := other
	switch text[i] {
	case '(':
		k = open
	case ')':
		k = closing
	case ',':
		k = comma
	case ';':
		k = semicolon
	case ':':
		if end < len(text) && text[end] == ':' {
			k, end = cast, end+1
		}
	case '.':
		switch {
		case end < len(text) && class[text[end]]&isDigit != 0:
			return s.lexNumber(i)
		case end < len(text) && text[end] == '.':
			end++
		default:
			k = dot
		}
	}
	s.token(k, i, end)
	return end
}
