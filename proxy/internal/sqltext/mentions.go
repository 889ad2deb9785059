package sqltext

import "bytes"

// mention is a word that has a meaning wherever it stands.
type mention struct {
	word string
	// command says that only the whole word counts, unquoted or in a literal, which a
	// function may run. Other words count as a part of any name too.
	command         bool
	flags, literals Flags // of a statement, and also of one that has it in a literal
}

// Without the first three words, a text can't carry or set a fence. Without those up to
// proxy_unhold, it can't give a name another meaning or release a lock either.
var (
	mentions = []mention{
		{word: "wirefence", flags: SetsVariable},
		{word: "set_config", literals: SetsVariable},
		{word: "pg_settings", flags: namesSettings, literals: SetsVariable},
		{word: "prepare", command: true},
		{word: "deallocate", command: true, literals: Renames},
		{word: "declare", command: true},
		{word: "advisory_unlock_", flags: Unlocks},
		{word: "proxy_hold", flags: Unlocks},
		{word: "proxy_unhold", flags: Unlocks},
		{word: "transaction_read_only", flags: NamesReadOnly},
		{word: "execute", command: true, flags: Executes},
	}
	fenceWord    = newSearch(mentions[:1])
	carrierWords = newSearch(mentions[:3])
	effectWords  = newSearch(mentions[:9])
	allWords     = newSearch(mentions)
	storingWords = newSearch([]mention{{word: "prepare"}, {word: "declare"}, {word: "create"}, {word: "alter"}})
)

// Mentions reports whether a text may carry a fence in a comment, change the session
// variable, give a name another meaning or release a lock: whether it has one of a few
// words, in any case and anywhere, or a U&" that could hide one. If not, a session without
// a fence may forward it unread.
func Mentions(text []byte) bool { return effectWords.finds(text) }

// Plain reports whether a text certainly is one statement of the class Ordinary, without
// flags and without a fence in its comments. It needs one look, and reports false in doubt.
func Plain(text []byte) bool {
	if end := bytes.IndexByte(text, ';'); end >= 0 && end < len(text)-1 {
		return false
	}
	for _, word := range plainWords {
		if len(text) > len(word) && class[text[len(word)]]&isIdent == 0 && hasFolded(text, word) {
			return !allWords.finds(text)
		}
	}
	return false
}

var plainWords = [...]string{"select", "insert", "update", "delete", "with"}

// MayCarry reports whether a text may carry a fence in a comment or change the session
// variable.
func MayCarry(text []byte) bool { return carrierWords.finds(text) }

// window is how many letters of a word the skip table considers.
const window = 5

// search finds several words at once, by Wu and Manber's algorithm with blocks of two bytes.
// For each pair of letters (case and the upper bits dropped) skips has how far the window
// may move if the pair ends it: 0 if the first window letters of a word may end there.
type search struct {
	words []mention
	skips [1024]uint8
}

func newSearch(words []mention) *search {
	s := &search{words: words}
	for i := range s.skips {
		s.skips[i] = window - 1
	}
	for _, m := range words {
		for j := 1; j < window; j++ {
			at := pair(m.word[j-1], m.word[j])
			s.skips[at] = min(s.skips[at], uint8(window-1-j))
		}
	}
	return s
}

func pair(a, b byte) int { return int(a&31) | int(b&31)<<5 }

// next returns the first word in text at from or behind, and its offset; nil and the text's
// length if there is none.
func (s *search) next(text []byte, from int) (*mention, int) {
	for i := from + window - 1; i < len(text); {
		if skip := s.skips[int(text[i-1]&31)|int(text[i]&31)<<5]; skip != 0 {
			i += int(skip)
			continue
		}
		at := i - (window - 1)
		for j := range s.words {
			if hasFolded(text[at:], s.words[j].word) {
				return &s.words[j], at
			}
		}
		i++
	}
	return nil, len(text)
}

// finds reports whether text has one of the words, or U&", the start of a name whose
// letters may be escaped.
func (s *search) finds(text []byte) bool {
	if m, _ := s.next(text, 0); m != nil {
		return true
	}
	for i := 0; ; i++ {
		n := bytes.Index(text[i:], []byte(`&"`))
		if n < 0 {
			return false
		}
		if i += n; i > 0 && lower[text[i-1]] == 'u' {
			return true
		}
	}
}

// isWhole reports whether text[at:end] is a word of its own. A dollar sign may end the tag
// of a literal, and a letter behind a backslash may be a line end.
func isWhole(text []byte, at, end int) bool {
	splits := func(c byte) bool { return class[c]&isIdent == 0 || c == '$' }
	return (at == 0 || splits(text[at-1]) || at > 1 && text[at-2] == '\\') && (end == len(text) || splits(text[end]))
}

// mayStore reports whether text has a word of a command that may store it.
func mayStore(text []byte) bool {
	for m, at := storingWords.next(text, 0); m != nil; m, at = storingWords.next(text, at+1) {
		if isWhole(text, at, at+len(m.word)) {
			return true
		}
	}
	return false
}

// hasFolded reports whether text starts with a lower-case word, in any case.
func hasFolded(text []byte, word string) bool {
	if len(text) < len(word) {
		return false
	}
	for i := 0; i < len(word); i++ {
		if lower[text[i]] != word[i] {
			return false
		}
	}
	return true
}

// lower folds A to Z, as PostgreSQL folds names.
var lower = func() (t [256]byte) {
	for i := range t {
		t[i] = byte(i)
		if 'A' <= i && i <= 'Z' {
			t[i] += 'a' - 'A'
		}
	}
	return t
}()
