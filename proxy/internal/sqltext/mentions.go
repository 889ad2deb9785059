package sqltext

import "bytes"

// mention is a word that has a meaning wherever it stands.
type mention struct {
	word  string
	flags Flags
	whole bool // it doesn't count as a part of a longer word
	// command says that it counts only in a literal, which a function may run.
	command bool
}

// counts reports whether the word at an offset of a text has its meaning there. quoted says that
// it is in a literal.
func (m *mention) counts(text []byte, at int, quoted bool) bool {
	return (quoted || !m.command) && (!m.whole || isWhole(text, at, at+len(m.word)))
}

// Without the first word, a text can't carry or set a fence. Without the first four, it can't
// give the name of a prepared statement another meaning either, or run one that sets a fence.
var (
	mentions = []mention{
		{word: "wirefence", flags: SetsVariable, whole: true},
		{word: "prepare"},
		{word: "deallocate"},
		{word: "execute"},
		{word: "set_config", flags: CallsSetter, whole: true},
		{word: "advisory_unlock_all", flags: Unlocks},
		{word: "advisory_unlock_shared", flags: Unlocks},
		{word: "advisory_unlock", flags: Locks},
		{word: "advisory_lock", flags: Locks},
		{word: "discard", flags: Unlocks, whole: true, command: true},
		{word: "application_name", flags: Renames, whole: true, command: true},
	}
	fenceWord   = newSearch(mentions[:1])
	effectWords = newSearch(mentions[:4])
	allWords    = newSearch(mentions)
)

// Mentions reports whether a text may carry a fence in a comment, change the session
// variable, or give, drop or run a prepared statement: whether it has one of a few words, in any
// case and anywhere. If not, a session without a fence may forward it unread.
func Mentions(text []byte) bool { return effectWords.finds(text) }

// ParameterFlags returns what a function may do that gets these parameters. A word at either end
// doesn't count, since it may be a part of a longer one: a message never begins or ends with one.
func ParameterFlags(parameters []byte) (flags Flags) {
	for m, at := allWords.next(parameters, 0); m != nil; m, at = allWords.next(parameters, at+1) {
		if at > 0 && at+len(m.word) < len(parameters) && m.counts(parameters, at, true) {
			flags |= m.flags
		}
	}
	return flags &^ CallsSetter
}

// longestWord is at least the length in bytes of each word that has a meaning, and one byte more
// at either end.
const longestWord = 32

// Search finds such words in what comes in parts. The zero value is ready for use.
type Search struct{ tail []byte }

// ReadPart returns ParameterFlags of the next part, and of what stands across its beginning.
func (s *Search) ReadPart(part []byte) Flags {
	across := append(s.tail, part[:min(len(part), longestWord)]...)
	flags := ParameterFlags(part) | ParameterFlags(across)
	if len(part) >= longestWord {
		across = part
	}
	s.tail = append(s.tail[:0], across[max(0, len(across)-longestWord):]...)
	return flags
}

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

// finds reports whether text has one of the words.
func (s *search) finds(text []byte) bool {
	m, _ := s.next(text, 0)
	return m != nil
}

// isWhole reports whether text[at:end] is a word of its own. A dollar sign may end the tag
// of a literal, and a letter behind a backslash may be a line end.
func isWhole(text []byte, at, end int) bool {
	splits := func(c byte) bool { return class[c]&isIdent == 0 || c == '$' }
	return (at == 0 || splits(text[at-1]) || at > 1 && text[at-2] == '\\') && (end == len(text) || splits(text[end]))
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
