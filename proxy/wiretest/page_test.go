package wiretest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The page on the protocol names a test or scripts for each case, and they are
// there.
func TestProtocolPageNamesWhatIsTested(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := exec.Command("grep", "-rhoE", "--include=*_test.go", `^func (Test|Fuzz)\w+`, "../..").Output()
	if err != nil {
		t.Fatal(err)
	}
	tests := strings.Fields(strings.ReplaceAll(string(source), "func ", ""))
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| [^|]+ \| ([^|]+) \|`).FindAllStringSubmatch(string(page), -1)
	if len(rows) != 20 {
		t.Fatalf("the page has %d cases", len(rows))
	}
	for _, row := range rows {
		names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1)
		if len(names) == 0 {
			t.Errorf("case %s has no test", row[1])
		}
		for _, name := range names {
			if name[1] == fmt.Sprintf("%02s", row[1]) {
				if !slices.ContainsFunc(scripts, func(s script) bool { return strings.HasPrefix(s.name, name[1]+" ") }) {
					t.Errorf("case %s has no script", row[1])
				}
			} else if !slices.Contains(tests, name[1]) {
				t.Errorf("case %s names %s, which isn't there", row[1], name[1])
			}
		}
	}
}
