package sqltext

import (
	"bytes"
	"fmt"

	"github.com/wirefence/wirefence/fence"
)

// comment looks for fences in a comment's own text, in sqlcommenter's form: pairs
// key='value' among other text. The key wirefence.token with a = and without a readable
// value is an error, never ignored; without a = it is prose. The key inside the value of
// another key is an error, too: its author has not encoded the value.
func (s *Scanner) comment(text []byte) {
	if s.found&mentionsFence == 0 || len(text) < len(fence.Variable) || s.result.FenceErr != nil {
		return
	}
	for i := 0; i < len(text); {
		if !isKeyByte[text[i]] {
			i++
			continue
		}
		end := i
		for end < len(text) && isKeyByte[text[end]] {
			end++
		}
		key := text[i:end]
		value := skipBlanks(text, end)
		i = end
		if isMisspelt(key, text[end:]) {
			s.result.FenceErr = malformed(fmt.Sprintf("the key %q in a comment looks like a fence's; write wirefence.token='resource=token'", shown(key)))
			return
		}
		if value >= len(text) || text[value] != '=' {
			continue
		}
		value = skipBlanks(text, value+1)
		ours := isFenceKey(key)
		if !ours && isFenceKey(trimNonASCII(key)) {
			s.result.FenceErr = malformed("characters beyond ASCII stand close to its key in a comment")
			return
		}
		last := valueEnd(text, value)
		switch {
		case ours && (last < 0 || valueContinues(text, last)):
			s.result.FenceErr = malformed("the value in a comment is not between single quotes")
			return
		case ours:
			s.fence(text[value+1 : last-1])
			i = last
		case last >= 0 && containsFenceKey(text[value:last]):
			s.result.FenceErr = malformed("it stands inside the value of another key in a comment")
			return
		case last >= 0:
			i = last
		}
	}
}

// isMisspelt reports whether a key, with the text behind it, is a misspelt fence: it names
// wirefence, isn't wirefence.token, and has a value.
func isMisspelt(key, behind []byte) bool {
	ours := isFenceKey(key) || isFenceKey(trimNonASCII(key))
	if !ours && mentioned(key)&mentionsFence == 0 {
		return false
	}
	if hasFolded(pad(key), "wirefence") && len(key) <= len("wirefence.") { // wirefence . token
		at := skipBlanks(behind, 0)
		for at < len(behind) && (isKeyByte[behind[at]] || class[behind[at]]&isBlank != 0) {
			at++
		}
		behind = behind[at:]
	}
	at := skipBlanks(behind, 0)
	switch {
	case at >= len(behind):
		return false
	case behind[at] == '=':
		return !ours
	case behind[at] != ':':
		return false
	}
	value := behind[skipBlanks(behind, at+1):]
	if len(value) > 0 && (value[0] == '\'' || value[0] == '"') {
		return true
	}
	if end := bytes.IndexAny(value, " \t\r\n\f\v"); end >= 0 {
		value = value[:end] // prose may have a = later on
	}
	return bytes.IndexByte(value, '=') >= 0
}

// shown returns a key, shortened for an error.
func shown(key []byte) []byte { return key[:min(len(key), 63)] }

// pad returns a key that hasFolded can compare with wirefence: blanks for a shorter one.
func pad(key []byte) []byte {
	if len(key) < len("wirefence") {
		return []byte("         ")
	}
	return key
}

// innerComment sets FenceErr for a fence in a comment within a comment.
func (s *Scanner) innerComment(text []byte) {
	if s.found&mentionsFence != 0 && s.result.FenceErr == nil && containsFenceKey(text) {
		s.result.FenceErr = malformed("it stands in a comment inside another comment")
	}
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

// isFenceKey reports whether a key is wirefence.token, in any case. Its dot may be
// URL-encoded; no encoder encodes letters.
func isFenceKey(key []byte) bool {
	switch len(key) {
	case len("wirefence.token"):
		return hasFolded(key, "wirefence.token")
	case len("wirefence%2etoken"):
		return hasFolded(key, "wirefence%2etoken")
	}
	return false
}

// trimNonASCII trims bytes beyond ASCII from both ends of a key: a no-break space looks like
// a space, but isn't one.
func trimNonASCII(key []byte) []byte {
	for len(key) > 0 && key[0] >= 0x80 {
		key = key[1:]
	}
	for len(key) > 0 && key[len(key)-1] >= 0x80 {
		key = key[:len(key)-1]
	}
	return key
}

// containsFenceKey reports whether text has the key wirefence.token with a = behind it.
func containsFenceKey(text []byte) bool {
	for i := 0; i < len(text); {
		if !isKeyByte[text[i]] {
			i++
			continue
		}
		end := i
		for end < len(text) && isKeyByte[text[end]] {
			end++
		}
		if next := skipBlanks(text, end); isFenceKey(text[i:end]) && next < len(text) && text[next] == '=' {
			return true
		}
		i = end
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

// valueContinues reports whether text directly follows a value, so that it may have ended
// too early.
func valueContinues(text []byte, i int) bool {
	return i < len(text) && (isKeyByte[text[i]] || text[i] == '\'' || text[i] == '"')
}

// fence adds the fence of a value: plain if it has a =, otherwise URL-encoded.
func (s *Scanner) fence(raw []byte) {
	if bytes.Equal(raw, s.last.value) && len(raw) > 0 && s.last.resource == s.opt.DefaultResource {
		s.addFence(s.last.fence, s.last.text)
		return
	}
	value, err := s.decode(raw)
	if err == nil {
		var f fence.Fence
		if f, err = fence.ParseWithDefault(string(value), s.opt.DefaultResource); err == nil {
			s.last.value = append(s.last.value[:0], raw...)
			s.last.resource, s.last.fence, s.last.text = s.opt.DefaultResource, f, f.String()
			s.addFence(f, s.last.text)
			return
		}
	}
	s.result.FenceErr = err
}

func (s *Scanner) addFence(f fence.Fence, text string) {
	switch {
	case s.sum.IsZero():
		s.sum, s.result.Fence = f, text
		return
	case text == s.result.Fence:
		return
	}
	sum, err := s.sum.Merge(f)
	if err != nil {
		s.result.FenceErr = err
		return
	}
	s.sum, s.result.Fence = sum, sum.String()
}

// decode removes sqlcommenter's escapes from a value, and the URL-encoding of a value
// without a =.
func (s *Scanner) decode(raw []byte) ([]byte, error) {
	s.value = s.value[:0]
	encoded := bytes.IndexByte(raw, '=') < 0
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case c == '\\' && i+1 < len(raw):
			i++
			c = raw[i]
		case c == '%' && encoded:
			if i+2 >= len(raw) || unhex(raw[i+1]) < 0 || unhex(raw[i+2]) < 0 {
				return nil, malformed("a percent sign is not followed by two hexadecimal digits")
			}
			c = byte(unhex(raw[i+1])<<4 | unhex(raw[i+2]))
			i += 2
		}
		s.value = append(s.value, c)
	}
	return s.value, nil
}

func unhex(c byte) int {
	switch c = lower[c]; {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
