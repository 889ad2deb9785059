package fence_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/wirefence/wirefence/fence"
)

// Each setting that the schema reads or writes is known, and no other.
func TestSettingsAreThoseOfTheSchema(t *testing.T) {
	files, err := filepath.Glob("../migrations/0*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var used []string
	call := regexp.MustCompile(`(?:current_setting|set_config)\(\s*'(wirefence\.[a-z_]+)'`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range call.FindAllSubmatch(text, -1) {
			used = append(used, string(m[1]))
		}
	}
	for _, name := range used {
		if !fence.IsSetting(name) {
			t.Errorf("the schema uses %s, which is not known", name)
		}
	}
	code, err := os.ReadFile("setting.go")
	if err != nil {
		t.Fatal(err)
	}
	used = append(used, fence.Variable)
	for _, m := range regexp.MustCompile(`"(wirefence\.\w+)"`).FindAllSubmatch(code, -1) {
		if !slices.Contains(used, string(m[1])) {
			t.Errorf("%s is known, and the schema doesn't use it", m[1])
		}
	}
}
