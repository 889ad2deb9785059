package suitetest

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

var figures = flag.String("figures", "", "the file that gets the number of tests of each suite, and how many end as directly: docs/suites.json")

// figure says of a suite in one way how many tests it has, and how many of them end as directly.
type figure struct {
	Tests int `json:"tests"`
	Same  int `json:"same"`
}

// record writes what came of a suite, beside the figures of runs before.
func record(t *testing.T, suite string, want, got map[string]string) {
	t.Helper()
	if *figures == "" {
		return
	}
	all := map[string]map[string]figure{}
	text, err := os.ReadFile(*figures)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	f := figure{Tests: len(want)}
	for name := range want {
		if got[name] == want[name] {
			f.Same++
		}
	}
	if all[suite] == nil {
		all[suite] = map[string]figure{}
	}
	all[suite][strings.ReplaceAll(path.Base(t.Name()), "_", " ")] = f
	text, err = json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = os.WriteFile(*figures, append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
