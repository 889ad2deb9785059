package session

import (
	"regexp"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
)

// assignment is what a statement does to the session variable, read from its text.
type assignment struct {
	local   bool   // for the transaction only
	reset   bool   // to what the session began with
	unclear bool   // to a value that the text doesn't tell
	value   string // to this
}

// The statements of which the text tells all. A literal with quotes or
// backslashes in it is none of a fence's, and left to doubt.
var (
	setForm       = regexp.MustCompile(`(?is)^set\s+(?:(session|local)\s+)?wirefence\s*\.\s*token(?:\s*=\s*|\s+to\s*)('[^'\\]*'|[0-9]+|default)$`)
	setConfigForm = regexp.MustCompile(`(?is)^select\s+(?:pg_catalog\s*\.\s*)?set_config\s*\(\s*'wirefence\.token'\s*,\s*('[^'\\]*'|\$[0-9]+)(?:\s*::\s*text)?\s*,\s*(true|false)\s*\)(?:\s+as\s+[a-z_]+)?$`)
	resetForm     = regexp.MustCompile(`(?is)^(?:reset\s+(?:wirefence\s*\.\s*token|all)|discard\s+all)$`)
)

// readSetting reads a statement that sets the session variable. ok is false if
// the text doesn't tell what it does.
func readSetting(text string) (s assignment, ok bool) {
	if resetForm.MatchString(text) {
		return assignment{reset: true}, true
	}
	if m := setConfigForm.FindStringSubmatch(text); m != nil {
		return assignment{
			local: strings.EqualFold(m[2], "true"), unclear: m[1][0] == '$', value: strings.Trim(m[1], "'"),
		}, true
	}
	m := setForm.FindStringSubmatch(text)
	if m == nil {
		return assignment{}, false
	}
	return assignment{
		local: strings.EqualFold(m[1], "local"), reset: strings.EqualFold(m[2], "default"),
		value: strings.Trim(m[2], "'"),
	}, true
}

// leavesAlone reports whether a statement that mentions the variable can't set
// it, since it calls nothing that would.
func leavesAlone(st *sqlscan.Statement, text string) bool {
	if st.SetterCall {
		return false
	}
	switch st.Verb {
	case sqlscan.VerbSet, sqlscan.VerbReset:
		// An escaped value, but not of this variable; a name may be escaped too.
		lower := strings.ToLower(text)
		return !strings.Contains(lower, "wirefence") && !strings.Contains(lower, `u&"`)
	case sqlscan.VerbDo, sqlscan.VerbCall, sqlscan.VerbExecute, sqlscan.VerbUnknown, sqlscan.VerbDiscard:
		return false
	}
	return true
}

// startupFence returns the value that a startup packet gives the session
// variable. carries is true too where it names the variable in a way that can't
// be read; then value is none that a fence could have.
func startupFence(params map[string]string) (value string, carries bool) {
	const unreadable = "\x00"
	options := params["options"]
	if strings.Contains(strings.ToLower(options), fence.Variable) {
		value, carries = unreadable, true
	}
	words := splitOptions(options)
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case word == "-c" && i+1 < len(words):
			i++
			word = words[i]
		case strings.HasPrefix(word, "-c"), strings.HasPrefix(word, "--"):
			word = word[2:]
		default:
			continue
		}
		if name, v, ok := strings.Cut(word, "="); ok && strings.EqualFold(name, fence.Variable) {
			value, carries = v, true
		}
	}
	for name, v := range params {
		if strings.EqualFold(name, fence.Variable) {
			value, carries = v, true
		}
	}
	return value, carries
}

// splitOptions splits a startup packet's options as PostgreSQL does: at blanks,
// where a backslash takes the next character for itself.
func splitOptions(text string) (words []string) {
	word, open := []byte(nil), false
	for i := 0; i < len(text); i++ {
		c := text[i]
		if strings.IndexByte(" \t\n\v\f\r", c) >= 0 {
			if open {
				words = append(words, string(word))
			}
			word, open = nil, false
			continue
		}
		if c == '\\' && i+1 < len(text) {
			i++
			c = text[i]
		}
		word, open = append(word, c), true
	}
	if open {
		words = append(words, string(word))
	}
	return words
}
