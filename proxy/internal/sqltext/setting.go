package sqltext

import (
	"bytes"
	"fmt"

	"github.com/wirefence/wirefence/fence"
)

// settingPrefix begins the names of Wirefence's settings.
const settingPrefix = "wirefence."

// UnknownSettingError says that Wirefence has no setting of this name in its namespace:
// PostgreSQL would accept the value, and nothing would check it.
type UnknownSettingError struct{ Name string }

func (e *UnknownSettingError) Error() string { return fmt.Sprintf("unknown setting %q", e.Name) }

// SQLState returns the SQLSTATE of a malformed fence.
func (e *UnknownSettingError) SQLState() string { return string(fence.MalformedToken) }

// CheckSetting returns an *UnknownSettingError for an unknown name that begins with
// wirefence. It ignores case, as PostgreSQL does.
func CheckSetting(name string) error {
	folded := bytes.ToLower([]byte(name))
	if !bytes.HasPrefix(folded, []byte(settingPrefix)) || fence.IsSetting(string(folded)) {
		return nil
	}
	const most = 63 // a longer name is cut short in an error message
	return &UnknownSettingError{string(folded[:min(len(folded), most)])}
}

// settingStage is the state of reading the name behind SET.
type settingStage uint8

const (
	noSetting settingStage = iota
	settingNamed
	settingDotted
)

// settingNext handles a token of the name behind SET: words with dots between them.
func (s *Scanner) settingNext(k kind, text []byte) {
	st := &s.st
	switch {
	case st.setting == settingNamed && k == dot:
		s.setting, st.setting = append(s.setting, '.'), settingDotted
	case st.setting == settingDotted && (k == word || k == quoted):
		s.setting, st.setting = append(s.setting, bytes.Trim(text, `"`)...), settingNamed
	case st.setting != noSetting:
		st.setting = noSetting
		s.checkSettingName(s.setting)
	case (k == word || k == quoted) && st.namesSetting() && mentioned(text)&mentionsFence != 0:
		s.setting, st.setting = append(s.setting[:0], bytes.Trim(text, `"`)...), settingNamed
	}
}

// checkSettingName sets FenceErr for an unknown setting.
func (s *Scanner) checkSettingName(name []byte) {
	for i, c := range name {
		name[i] = lower[c]
	}
	if s.result.FenceErr == nil && bytes.HasPrefix(name, []byte(settingPrefix)) && !fence.IsSetting(string(name)) {
		s.result.FenceErr = CheckSetting(string(name))
	}
}

// namesSetting reports whether the next token is the name of a setting: behind SET, or the
// SET clause of a role, a database, a routine or the system.
func (st *state) namesSetting() bool {
	if st.words[0].is("set") {
		return st.n == 1 || st.n == 2 && (st.words[1].is("local") || st.words[1].is("session"))
	}
	if st.prev != word || !st.prevWord.is("set") || st.depth > 0 || st.atomic > 0 {
		return false
	}
	return st.createsRoutine() || st.words[0].is("alter") && configurable[string(st.words[1].text())]
}

// configurable are the objects with settings, by ALTER … SET.
var configurable = set("role", "user", "database", "system", "function", "procedure", "routine")
