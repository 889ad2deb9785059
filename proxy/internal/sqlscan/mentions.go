package sqlscan

import "bytes"

// mention is a set of the words that a text mentions.
type mention uint16

const (
	mentionsFence mention = 1 << iota
	mentionsSetConfig
	mentionsStrings
	mentionsEncoding
	mentionsNames
	mentionsReset
	mentionsDiscard
	mentionsExecute
	mentionsDeclare
	mentionsPrepare
	mentionsUnicode

	mentionsSetter = mentionsFence | mentionsSetConfig
	mentionsLexing = mentionsStrings | mentionsEncoding
)

var needles = [...]struct {
	word string
	is   mention
}{
	{"wirefence", mentionsFence},
	{"set_config", mentionsSetConfig},
	{"standard_conforming_strings", mentionsStrings},
	{"client_encoding", mentionsEncoding},
	{"names", mentionsNames},
	{"reset", mentionsReset},
	{"discard", mentionsDiscard},
	{"execute", mentionsExecute},
	{"declare", mentionsDeclare},
	{"prepare", mentionsPrepare},
}

// MentionOverlap is how many bytes of the chunk before must stand before a
// chunk, so that Mentions misses nothing over a seam.
const MentionOverlap = len("standard_conforming_strings") - 1

// Mentions reports whether a text may carry a fence in a comment, may change the
// session variable or how later text is lexed, may declare a cursor, which runs
// when it is fetched, or prepare a statement under a name that had another meaning: whether it holds any of a few words, in any case and
// anywhere, or a backslash or a U&" that could hide one. When it doesn't, an
// unfenced session may forward it unscanned; but what functions of the catalog set is not seen here
// (see Catalog.HasSetters).
func Mentions(chunk []byte) bool {
	return bytes.IndexByte(chunk, '\\') >= 0 || find(chunk, 0) != 0
}

// mentioned returns all that text mentions.
func mentioned(text []byte) mention { return find(text, ^mention(0)) }

// window is how many letters of a needle decide how far a search may skip.
const window = 5

// skips holds, for each pair of letters (case and the upper bits dropped), how
// far the window may move when the pair stands at its end: 0 where a needle may
// end its first five letters there. This is Wu and Manber's search, with blocks
// of two bytes.
var skips = func() (t [1024]uint8) {
	for i := range t {
		t[i] = window - 1
	}
	for _, n := range needles {
		for j := 1; j < window; j++ {
			at := pair(n.word[j-1], n.word[j])
			t[at] = min(t[at], uint8(window-1-j))
		}
	}
	return t
}()

func pair(a, b byte) int { return int(a&31) | int(b&31)<<5 }

// find returns what text mentions: the first word found if all is 0, else
// everything.
func find(text []byte, all mention) (found mention) {
	for i := window - 1; i < len(text); {
		if skip := skips[int(text[i-1]&31)|int(text[i]&31)<<5]; skip != 0 {
			i += int(skip)
			continue
		}
		if found |= at(text, i); found != 0 && all == 0 {
			return found
		}
		i++
	}
	return found | unicodeAt(text)
}

// at returns the word that begins where the window that ends at i begins.
func at(text []byte, i int) mention {
	rest := text[i-(window-1):]
	for _, n := range needles {
		if len(rest) >= len(n.word) && hasFolded(rest, n.word) {
			return n.is
		}
	}
	return 0
}

// unicodeAt looks for U&", the start of a name whose letters may be escaped.
func unicodeAt(text []byte) mention {
	for i := 0; ; i++ {
		n := bytes.IndexByte(text[i:], '&')
		if n < 0 {
			return 0
		}
		i += n
		if i > 0 && i+1 < len(text) && lower[text[i-1]] == 'u' && text[i+1] == '"' {
			return mentionsUnicode
		}
	}
}

// hasFolded reports whether text starts with a lower-case word, in any case.
func hasFolded(text []byte, word string) bool {
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

// endings are the words by which the text of a DO may end its transaction, or call
// a procedure that does.
var endings = [...]string{"commit", "rollback", "call"}

// body looks for words in the text of a DO, wherever they stand in it: for those
// that may end its transaction, and for functions that set the session variable.
func (s *Scanner) body(k kind, text []byte) {
	st := &s.st
	st.mayCommit = st.mayCommit || k == escaped
	for i := 0; i < len(text); i++ {
		if class[text[i]]&isIdent == 0 {
			continue
		}
		var buf [maxName]byte
		n := 0
		for ; i < len(text) && class[text[i]]&isIdent != 0; i++ {
			if n < len(buf) {
				buf[n] = lower[text[i]]
			}
			n++
		}
		word := buf[:min(n, len(buf))]
		for _, ending := range endings {
			st.mayCommit = st.mayCommit || string(word) == ending
		}
		if s.cat != nil && s.cat.setters && s.cat.names[string(word)]&isSetter != 0 {
			st.out.Setter, st.out.SetterCall, st.out.SetsLexing = true, true, true
		}
	}
}
