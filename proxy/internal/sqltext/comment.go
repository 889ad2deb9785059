package sqltext

import (
	"bytes"
	"fmt"
	"net/url"

	"github.com/wirefence/wirefence/fence"
)

// comment looks for fences in a comment's own text, in sqlcommenter's form: pairs
// key='value' among other text. The key wirefence.token with a = and without a readable
// value is an error, never ignored; without a = it is prose. The key inside the value of
// another key is an error, too: its author has not encoded the value.
func (s *Scanner) comment(start, end int) {
	if !s.namesWirefence(start, end) || s.result.FenceErr != nil {
		return
	}
	text := s.text[start:end]
	for key, at := nextKey(text, 0); key != nil; key, at = nextKey(text, at) {
		behind := skipBlanks(text, at)
		if isMisspelt(key, text[behind:]) {
			s.result.FenceErr = malformed(fmt.Sprintf("the key %q in a comment looks like a fence's; write wirefence.token='resource=token'", key[:min(len(key), 63)]))
			return
		}
		if behind == len(text) || text[behind] != '=' {
			continue
		}
		value := skipBlanks(text, behind+1)
		last := valueEnd(text, value)
		switch ours := isFenceKey(key); {
		case ours && (last < 0 || last < len(text) && (isKeyByte[text[last]] || text[last] == '\'' || text[last] == '"')):
			s.result.FenceErr = malformed("the value in a comment is not between single quotes")
			return
		case ours:
			s.fence(text[value+1 : last-1])
		case last >= 0 && containsFenceKey(text[value:last]):
			s.result.FenceErr = malformed("it stands inside the value of another key in a comment")
			return
		}
		at = max(at, last)
	}
}

// innerComment sets FenceErr for a fence in a comment within a comment.
func (s *Scanner) innerComment(start, end int) {
	if s.namesWirefence(start, end) && s.result.FenceErr == nil && containsFenceKey(s.text[start:end]) {
		s.result.FenceErr = malformed("it stands in a comment inside another comment")
	}
}

// namesWirefence reports whether the text from start to end has the word wirefence.
func (s *Scanner) namesWirefence(start, end int) (names bool) {
	for m, at := s.mentioned(start, end); m != nil; m, at = s.mentioned(at+1, end) {
		names = names || m == &mentions[0]
	}
	return names
}

// isMisspelt reports whether a key, with the text behind it, is a misspelt fence: it names
// wirefence, isn't wirefence.token, and has a value close to it.
func isMisspelt(key, behind []byte) bool {
	behind = behind[:min(len(behind), 256)] // a comment may have many such keys
	if m, _ := fenceWord.next(key, 0); m == nil {
		return false
	}
	if hasFolded(key, "wirefence") && len(key) <= len("wirefence.") { // wirefence . token
		at := 0
		for at < len(behind) && (isKeyByte[behind[at]] || class[behind[at]]&isSpace != 0 && !endsLine(behind[at])) {
			at++
		}
		behind = behind[skipBlanks(behind, at):]
	}
	if len(behind) == 0 || behind[0] != ':' {
		return len(behind) > 0 && behind[0] == '=' && !isFenceKey(key)
	}
	value := behind[skipBlanks(behind, 1):]
	end := bytes.IndexAny(value, "='\" \t\r\n\f\v") // prose may have a = later on
	return end == 0 || end > 0 && value[end] == '='
}

func malformed(reason string) error { return &fence.SyntaxError{Reason: reason} }

// isKeyByte marks the bytes of keys.
var isKeyByte = func() (t [256]bool) {
	for c := range t {
		t[c] = class[c]&isIdent != 0 || c == '.' || c == '%' || c == '-'
	}
	return t
}()

func skipBlanks(text []byte, i int) int {
	for i < len(text) && class[text[i]]&isSpace != 0 {
		i++
	}
	return i
}

// nextKey returns the next key in text at i or behind, nil without one, and its end.
func nextKey(text []byte, i int) (key []byte, end int) {
	for i < len(text) && !isKeyByte[text[i]] {
		i++
	}
	for end = i; end < len(text) && isKeyByte[text[end]]; {
		end++
	}
	if i == end {
		return nil, end
	}
	return text[i:end], end
}

// isFenceKey reports whether a key is wirefence.token, in any case. Its dot may be
// URL-encoded; no encoder encodes letters.
func isFenceKey(key []byte) bool {
	const plain, encoded = "wirefence.token", "wirefence%2etoken"
	return len(key) == len(plain) && hasFolded(key, plain) || len(key) == len(encoded) && hasFolded(key, encoded)
}

// containsFenceKey reports whether text has the key wirefence.token with a = behind it.
func containsFenceKey(text []byte) bool {
	for key, at := nextKey(text, 0); key != nil; key, at = nextKey(text, at) {
		if behind := skipBlanks(text, at); isFenceKey(key) && behind < len(text) && text[behind] == '=' {
			return true
		}
	}
	return false
}

// valueEnd returns the offset past the closing quote of a value, or -1 if there is none or
// no opening quote at i. A backslash escapes a quote.
func valueEnd(text []byte, i int) int {
	if i >= len(text) || text[i] != '\'' {
		return -1
	}
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '\'':
			return i + 1
		}
	}
	return -1
}

// fence adds the fence of a value: plain if it has a =, otherwise URL-encoded. The same
// bytes as last time are the same fence.
func (s *Scanner) fence(raw []byte) {
	if !bytes.Equal(raw, s.last.value) || len(raw) == 0 || s.last.resource != s.opt.DefaultResource {
		value := string(raw)
		if bytes.IndexByte(raw, '=') < 0 {
			var err error
			if value, err = url.PathUnescape(value); err != nil {
				s.result.FenceErr = malformed("a percent sign is not followed by two hexadecimal digits")
				return
			}
		}
		f, err := fence.ParseWithDefault(value, s.opt.DefaultResource)
		if err != nil {
			s.result.FenceErr = err
			return
		}
		s.last.value = append(s.last.value[:0], raw...)
		s.last.resource, s.last.fence, s.last.text = s.opt.DefaultResource, f, f.String()
	}
	if s.result.Fence == "" {
		s.first, s.result.Fence = s.last.fence, s.last.text
	} else if s.last.text != s.result.Fence {
		s.others = append(s.others, s.last.fence)
	}
}

// merge adds up the fences of all comments, at once: a text may have many.
func (s *Scanner) merge() {
	if len(s.others) == 0 || s.result.FenceErr != nil {
		return
	}
	sum, err := s.first.Merge(s.others...)
	if err != nil {
		s.result.FenceErr = err
		return
	}
	s.result.Fence = sum.String()
}
