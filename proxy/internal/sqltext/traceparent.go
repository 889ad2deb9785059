package sqltext

import "bytes"

// TraceParentSize is the length in bytes of a traceparent: version, trace id, parent id and
// flags in lower-case hexadecimal, with hyphens between (W3C Trace Context).
const TraceParentSize = 2 + 1 + 32 + 1 + 16 + 1 + 2

var (
	traceKey   = []byte("traceparent='")
	traceQuote = byte('\'')
)

// TraceParent returns the traceparent in a comment of sqlcommenter's form, as a part of the
// text; nil without one. It serves logs only, so it doesn't check whether the comment's
// start is inside a literal.
func TraceParent(text []byte) []byte {
	for at := 0; ; {
		found := bytes.Index(text[at:], traceKey)
		if found < 0 {
			return nil
		}
		key := at + found
		at = key + len(traceKey)
		if len(text) <= at+TraceParentSize {
			return nil
		}
		value := text[at : at+TraceParentSize]
		if text[at+TraceParentSize] == traceQuote && isTraceParent(value) && inComment(text[:key]) {
			return value
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

func isTraceParent(value []byte) bool {
	zeroTrace, zeroSpan := true, true
	for i, c := range value {
		switch {
		case i == 2 || i == 35 || i == 52:
			if c != '-' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		case i > 2 && i < 35:
			zeroTrace = zeroTrace && c == '0'
		case i > 35 && i < 52:
			zeroSpan = zeroSpan && c == '0'
		}
	}
	return !zeroTrace && !zeroSpan && !(value[0] == 'f' && value[1] == 'f')
}
