package sqltext

import (
	"bytes"
	"regexp"
)

// TraceParentSize is the length in bytes of a traceparent: version, trace id, parent id and
// flags in lower-case hexadecimal, with hyphens between (W3C Trace Context).
const TraceParentSize = 2 + 1 + 32 + 1 + 16 + 1 + 2

// TraceParent returns the traceparent in a comment of sqlcommenter's form, as a part of the
// text; nil if there is none, or the first one isn't in a comment. It serves logs only, so
// it doesn't check whether the comment's start is inside a literal.
func TraceParent(text []byte) []byte {
	const key = "traceparent='"
	for at := 0; ; {
		found := bytes.Index(text[at:], []byte(key))
		if found < 0 {
			return nil
		}
		before := text[:at+found]
		at += found + len(key)
		if len(text) <= at+TraceParentSize {
			return nil
		}
		value := text[at : at+TraceParentSize]
		if text[at+TraceParentSize] == '\'' && isTraceParent(value) {
			if inComment(before) {
				return value
			}
			return nil
		}
	}
}

// inComment reports whether the text ends within a comment.
func inComment(before []byte) bool {
	if bytes.LastIndex(before, []byte("/*")) > bytes.LastIndex(before, []byte("*/")) {
		return true
	}
	line := before[bytes.LastIndexByte(before, '\n')+1:]
	return bytes.Contains(line, []byte("--"))
}

var traceParent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

func isTraceParent(value []byte) bool {
	if !traceParent.Match(value) {
		return false
	}
	const zeros = "00000000000000000000000000000000"
	return string(value[:2]) != "ff" && string(value[3:35]) != zeros && string(value[36:52]) != zeros[:16]
}
