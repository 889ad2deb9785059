package sqltext

import (
	"bytes"
	"slices"
)

// mention is a set of kinds of words that a text mentions.
type mention uint8

const (
	mentionsFence mention = 1 << iota
	mentionsSetConfig
	mentionsSettings
	mentionsUnicode
	mentionsUnlock
	mentionsReadOnly
	mentionsExecute
	mentionsPrepare
)

type needle struct {
	word string
	is   mention
}

// carrierWords are the words without which a text can't carry or set a fence. effectWords
// are these, and those without which it can't give a name another meaning or store code
// that releases locks. allWords are all words with a meaning to the package.
var (
	carrierWords = newSearch(needle{"wirefence", mentionsFence}, needle{"set_config", mentionsSetConfig}, needle{"pg_settings", mentionsSettings})
	effectWords  = newSearch(append(slices.Clone(carrierWords.needles), needle{"prepare", mentionsPrepare}, needle{"declare", mentionsPrepare}, needle{"advisory_unlock", mentionsUnlock})...)
	allWords     = newSearch(append(slices.Clone(carrierWords.needles),
		needle{"advisory_unlock", mentionsUnlock}, needle{"transaction_read_only", mentionsReadOnly}, needle{"execute", mentionsExecute}, needle{"prepare", mentionsPrepare})...)
)

// MentionOverlap is how many bytes of the previous chunk must precede a chunk, so that
// Mentions finds words across the boundary.
const MentionOverlap = len("advisory_unlock") - 1

// Mentions reports whether a text may carry a fence in a comment, change the session
// variable, give a name another meaning or store code that releases locks: whether it has
// one of a few words, in any case and anywhere, or a U&" that could hide one. If not, a
// session without a fence may forward it unread.
func Mentions(chunk []byte) bool { return effectWords.find(chunk, 0) != 0 }

// MayCarry reports whether a text may carry a fence in a comment or change the session
// variable.
func MayCarry(chunk []byte) bool { return carrierWords.find(chunk, 0) != 0 }

// mentioned returns all mentions in text.
func mentioned(text []byte) mention { return allWords.find(text, ^mention(0)) }

// window is how many letters of a needle the skip table considers.
const window = 5

// search finds several words at once, by Wu and Manber's algorithm with blocks of two bytes.
// For each pair of letters (case and the upper bits dropped) skips has how far the window
// may move if the pair ends it: 0 if the first window letters of a needle may end there.
type search struct {
	needles []needle
	skips   [1024]uint8
}

func newSearch(needles ...needle) *search {
	s := &search{needles: needles}
	for i := range s.skips {
		s.skips[i] = window - 1
	}
	for _, n := range needles {
		for j := 1; j < window; j++ {
			at := pair(n.word[j-1], n.word[j])
			s.skips[at] = min(s.skips[at], uint8(window-1-j))
		}
	}
	return s
}

func pair(a, b byte) int { return int(a&31) | int(b&31)<<5 }

// find returns the mentions in text: only the first one if all is 0.
func (s *search) find(text []byte, all mention) (found mention) {
	for i := window - 1; i < len(text); {
		if skip := s.skips[int(text[i-1]&31)|int(text[i]&31)<<5]; skip != 0 {
			i += int(skip)
			continue
		}
		if found |= s.at(text[i-(window-1):]); found != 0 && all == 0 {
			return found
		}
		i++
	}
	return found | unicodeAt(text)
}

// at returns the mention of the needle at the start of text, 0 without one.
func (s *search) at(text []byte) mention {
	for _, n := range s.needles {
		if len(text) >= len(n.word) && hasFolded(text, n.word) {
			return n.is
		}
	}
	return 0
}

// unicodeAt returns mentionsUnicode if text has U&", the start of a name whose letters may
// be escaped.
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
