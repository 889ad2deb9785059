package session

import (
	"strings"

	"github.com/wirefence/wirefence/fence"
)

// startupSetting is a setting of a startup packet.
type startupSetting struct{ name, value string }

// startupSettings returns the settings of a startup packet, by name and in its options. Of
// equal names the last one counts. Names are as PostgreSQL reads them, except their case.
func startupSettings(params map[string]string) (all []startupSetting) {
	words := splitOptions(params["options"])
	for len(words) > 0 {
		var text string
		if text, words = nextSetting(words); text != "" {
			name, value, _ := strings.Cut(text, "=")
			all = append(all, startupSetting{strings.ReplaceAll(name, "-", "_"), value})
		}
	}
	for name, value := range params { // PostgreSQL sets them after the options
		all = append(all, startupSetting{name, value})
	}
	return all
}

// valueSwitches are the switches of process_postgres_switches, in PostgreSQL 14 to 18, that
// have a value: the rest of the word, or the next word.
const valueSwitches = "BcCDdfhkNrStvW-"

// nextSetting reads one word of options as getopt does, and its value: switches without a
// value may stand before the last one in a word, as in -ec name=value. It returns the text
// of a setting, "" if there is none, and the words behind it.
func nextSetting(words []string) (setting string, rest []string) {
	word, rest := words[0], words[1:]
	if !strings.HasPrefix(word, "-") {
		return "", rest
	}
	for i := 1; i < len(word); i++ {
		if strings.IndexByte(valueSwitches, word[i]) < 0 {
			continue
		}
		value := word[i+1:]
		if value == "" && len(rest) > 0 {
			value, rest = rest[0], rest[1:]
		}
		if word[i] != 'c' && word[i] != '-' {
			value = ""
		}
		return value, rest
	}
	return "", rest
}

// splitOptions splits options at white space, as PostgreSQL does. A backslash escapes the
// next character.
func splitOptions(options string) (words []string) {
	var word strings.Builder
	inWord := false
	for i := 0; i < len(options); i++ {
		switch c := options[i]; {
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			if inWord {
				words, inWord = append(words, word.String()), false
				word.Reset()
			}
		default:
			if c == '\\' && i+1 < len(options) {
				i++
			}
			word.WriteByte(options[i])
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// readStartupSettings reads the fence in the startup packet.
func (s *Session) readStartupSettings(params map[string]string) {
	if !namesWirefence(params) {
		return
	}
	for _, set := range startupSettings(params) {
		if strings.EqualFold(set.name, fence.Variable) {
			s.startupFence = set.value
		}
	}
	s.login.fenceAtStartup = s.startupFence != ""
}

// namesWirefence reports whether a startup packet may set one of Wirefence's settings; most
// don't.
func namesWirefence(params map[string]string) bool {
	for name := range params {
		if strings.HasPrefix(strings.ToLower(name), "wirefence.") {
			return true
		}
	}
	return params["options"] != ""
}
