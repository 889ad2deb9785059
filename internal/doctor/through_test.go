package doctor

import (
	"strings"
	"testing"
)

// What no PgBouncer does to names that this test's machines have.
func TestJudgeNames(t *testing.T) {
	for _, c := range []struct {
		wrong  map[string]string
		counts bool
		grade  Grade
		says   string
	}{
		{map[string]string{someName: "Supavisor", nextName: "Supavisor", sameName: "Supavisor", longName: "Supavisor"}, false, Note, `is lost: a client has the name "Supavisor"`},
		{map[string]string{someName: "Supavisor"}, true, Problem, "is lost"},
		{map[string]string{sameName: someName}, true, Note, "differ in case"},
		{map[string]string{nextName: someName}, true, Problem, "each other's"},
		{map[string]string{longName: longName[:40]}, true, Problem, "63 bytes is lost or cut"},
	} {
		if found := judgeNames(c.wrong, c.counts); len(found) < 1 || found[0].Grade != c.grade || !strings.Contains(found[0].Says, c.says) || len(found[0].Remedy) == 0 {
			t.Errorf("%v: %+v", c.wrong, found)
		}
	}
	// Names that differ in case don't keep a fence from counting, which has no capitals.
	if found := judgeNames(map[string]string{sameName: someName}, true); len(found) != 2 || found[1].Grade != OK {
		t.Errorf("%+v", found)
	}
}
