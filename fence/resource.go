package fence

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxResourceBytes is the longest resource name, in bytes of UTF-8.
const MaxResourceBytes = 255

// Resource is the name of what a lock protects: 1 to 255 bytes of UTF-8
// without a NUL. It is the decoded name; Encode gives the form that stands in a
// fence.
type Resource string

// ParseResource checks that name can be a resource.
func ParseResource(name string) (Resource, error) {
	switch {
	case name == "":
		return "", &SyntaxError{Reason: "a resource name is empty"}
	case len(name) > MaxResourceBytes:
		return "", &SyntaxError{Reason: fmt.Sprintf("a resource name has %d bytes, at most %d are allowed", len(name), MaxResourceBytes)}
	case !utf8.ValidString(name):
		return "", &SyntaxError{Reason: "a resource name is not valid UTF-8"}
	case strings.IndexByte(name, 0) >= 0:
		return "", &SyntaxError{Reason: "a resource name contains a NUL"}
	}
	return Resource(name), nil
}

// Encode returns the name as it stands in a fence: every byte outside
// A–Z a–z 0–9 _ . : / - is percent-encoded, so that the text is plain ASCII
// without quotes or backslashes.
func (r Resource) Encode() string { return encode(string(r), func(c byte) bool { return plain[c] }) }

// encode percent-encodes the bytes of text that don't stand for themselves.
func encode(text string, isPlain func(byte) bool) string {
	const hex = "0123456789ABCDEF"
	var out []byte // nil while all bytes were plain
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case !isPlain(c):
			if out == nil {
				out = append(make([]byte, 0, len(text)+8), text[:i]...)
			}
			out = append(out, '%', hex[c>>4], hex[c&15])
		case out != nil:
			out = append(out, c)
		}
	}
	if out == nil {
		return text
	}
	return string(out)
}

// decodeResource reverses Encode. It accepts escapes of plain characters and
// hexadecimal digits of either case.
func decodeResource(text string) (Resource, error) {
	if strings.IndexByte(text, '%') < 0 {
		for i := 0; i < len(text); i++ {
			if !plain[text[i]] {
				return "", badByte(text[i])
			}
		}
		return ParseResource(text)
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '%' {
			if !plain[c] {
				return "", badByte(c)
			}
			out = append(out, c)
			continue
		}
		if i+2 >= len(text) || unhex(text[i+1]) < 0 || unhex(text[i+2]) < 0 {
			return "", &SyntaxError{Reason: "a percent sign is not followed by two hexadecimal digits"}
		}
		out = append(out, byte(unhex(text[i+1])<<4|unhex(text[i+2])))
		i += 2
	}
	return ParseResource(string(out))
}

func badByte(c byte) error {
	return &SyntaxError{Reason: fmt.Sprintf("byte 0x%02x must be percent-encoded in a resource name", c)}
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// plain marks the bytes that stand for themselves in a fence.
var plain = func() (t [256]bool) {
	for c := '0'; c <= '9'; c++ {
		t[c] = true
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-'a'+'A'] = true, true
	}
	for _, c := range "_.:/-" {
		t[c] = true
	}
	return t
}()
