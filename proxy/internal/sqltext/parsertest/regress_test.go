package parsertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

// TestRegression compares the texts of PostgreSQL's own regression tests. They are
// psql's scripts: its own commands are left out, and a text ends with a line on which
// the scanner has come to the end of everything that it has begun.
func TestRegression(t *testing.T) {
	folder := filepath.Join(servers.CacheDir(), "suites", "regress", "sql")
	files, err := filepath.Glob(filepath.Join(folder, "*.sql"))
	if err != nil || len(files) < 200 {
		t.Fatalf("%d regression tests of PostgreSQL are in the cache: run scripts/install-servers --suites", len(files))
	}
	var lexing lexing
	for _, file := range files {
		script, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts(string(script)) {
			for _, escapes := range []bool{false, true} {
				if difference := lexing.compare(text, escapes, 2); difference != "" {
					t.Errorf("%s: %q, escapes %v: %s", filepath.Base(file), text, escapes, difference)
				}
			}
		}
	}
	t.Log(&lexing)
	if lexing.texts < 40_000 || lexing.statements < 40_000 || lexing.comments < 1_000 {
		t.Error("too little was compared")
	}
}

// texts cuts a script into what a client might send.
func texts(script string) (all []string) {
	const most = 200 // lines; a text that never ends is let go
	var text strings.Builder
	lines := 0
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, `\`) {
			continue
		}
		text.WriteString(line)
		lines++
		whole := strings.HasSuffix(strings.TrimSpace(line), ";")
		if whole {
			_, err := Scan(text.String(), false)
			whole = err == nil
		}
		if whole {
			all = append(all, text.String())
		}
		if whole || lines == most {
			text.Reset()
			lines = 0
		}
	}
	return all
}
