package sqltext

// Stream finds a fence in the comments of a text that comes in parts, in constant memory. It
// reads bytes as a Scanner does, but knows no statements. NewStream makes one.
type Stream struct {
	opt     Options
	in      place
	depth   int  // of block comments
	escapes bool // backslashes escape in this literal
	escaped bool // the last byte was such a backslash
	goesOn  bool // the last literal goes on with a quote, if it is on another line
	line    bool // there was a line end since that literal
	before  byte // the byte ahead of last, outside of literals
	last    byte
	trail   int // bytes of a character that are still to come

	tag     [64]byte // of a dollar-quoted literal, with its dollar signs
	tagSize int      // above 64: it doesn't end
	matched int      // bytes of tag that the literal's last bytes are equal to

	word    int  // bytes of the word wirefence that the last bytes are equal to; -1 in another name
	named   bool // a name, a literal or a comment has that word
	key     [len("wirefence%2etoken") + 1]byte
	keySize int  // of the key in a comment that is being read
	isKey   bool // the last key in a comment is a fence's
	fence   bool // a comment has one
}

// place is where a Stream is.
type place uint8

const (
	code place = iota
	literalText
	literalQuote // behind a quote in a literal, which may be doubled
	quotedName
	dollarTag
	dollarText
	lineComment
	blockComment
)

// NewStream returns a stream for a text that is read under these settings.
func NewStream(opt Options) Stream { return Stream{opt: opt} }

// Named reports whether what was read has the word wirefence.
func (s *Stream) Named() bool { return s.named }

// Read reads the next part of the text, and reports whether a comment in it has a fence.
func (s *Stream) Read(part []byte) (fence bool) {
	for _, c := range part {
		s.words(c)
		if s.trail > 0 {
			if s.trail--; s.opt.Encoding == GB18030 && s.last >= 0x80 && '0' <= c && c <= '9' {
				s.trail += 2
			}
			s.last = 0
			continue
		}
		if s.opt.Encoding.unsafe() && c >= 0x80 {
			s.trail = s.opt.Encoding.charLen([]byte{c, 0, 0, 0}) - 1
		}
		s.step(c)
		s.before, s.last = s.last, c
	}
	return s.fence
}

// step goes on by a byte that isn't in the middle of a character.
func (s *Stream) step(c byte) {
	switch s.in {
	case literalQuote:
		if s.in = literalText; c != '\'' {
			s.in, s.goesOn, s.line = code, true, false
			s.code(c)
		}
	case literalText:
		switch {
		case s.escaped:
			s.escaped = false
		case c == '\\':
			s.escaped = s.escapes
		case c == '\'':
			s.in = literalQuote
		}
	case quotedName:
		if c == '"' {
			s.in, s.last = code, 0
		}
	case dollarTag:
		s.dollar(c)
	case dollarText:
		switch {
		case s.tagSize <= len(s.tag) && c == s.tag[s.matched]:
			if s.matched++; s.matched == s.tagSize {
				s.in = code
			}
		case c == '$':
			s.matched = 1
		default:
			s.matched = 0
		}
	case lineComment:
		if endsLine(c) {
			s.in, s.line = code, true
		}
	case blockComment:
		switch {
		case s.last == '/' && c == '*':
			s.depth++
			s.last = 0
		case s.last == '*' && c == '/':
			if s.depth--; s.depth == 0 {
				s.in = code
			}
		}
	default:
		s.code(c)
	}
}

func (s *Stream) code(c byte) {
	switch {
	case c == '\'':
		if !s.goesOn || !s.line {
			s.escapes = s.opt.EscapeStrings && s.last != '&'
			if class[s.before]&isIdent == 0 {
				switch s.last {
				case 'e', 'E':
					s.escapes = true
				case 'b', 'B', 'x', 'X':
					s.escapes = false
				}
			}
		}
		s.in, s.escaped = literalText, false
	case c == '"':
		s.in = quotedName
	case c == '$' && class[s.last]&isIdent == 0:
		s.in, s.tagSize, s.tag[0] = dollarTag, 1, '$'
	case c == '-' && s.last == '-':
		s.in = lineComment
		return // a literal may go on behind it
	case c == '*' && s.last == '/':
		s.in, s.depth = blockComment, 1
	case class[c]&isSpace != 0:
		s.line = s.line || endsLine(c)
		return
	case c == '-':
		return
	}
	s.goesOn = false
}

// dollar reads what may be the tag of a literal.
func (s *Stream) dollar(c byte) {
	switch {
	case c == '$':
		s.in, s.matched = dollarText, 0
	case class[c]&isIdent == 0 || s.tagSize == 1 && class[c]&isDigit != 0:
		s.in = code
		s.code(c)
		return
	}
	if s.tagSize < len(s.tag) {
		s.tag[s.tagSize] = c
	}
	s.tagSize++
}

// words looks for the word wirefence, and in comments for a fence's key.
func (s *Stream) words(c byte) {
	const word = "wirefence"
	switch {
	case class[c]&isIdent == 0:
		s.named = s.named || s.word == len(word)
		s.word = 0
	case s.word >= 0 && s.word < len(word) && lower[c] == word[s.word]:
		s.word++
	default:
		s.word = -1
	}
	if s.in != lineComment && s.in != blockComment {
		s.keySize, s.isKey = 0, false
		return
	}
	switch {
	case isKeyByte[c]:
		if s.keySize < len(s.key) {
			s.key[s.keySize] = c
			s.keySize++
		}
		return
	case s.keySize > 0:
		s.isKey = isFenceKey(s.key[:s.keySize])
		s.keySize = 0
	}
	s.fence = s.fence || s.isKey && c == '='
	s.isKey = s.isKey && class[c]&isSpace != 0
}
