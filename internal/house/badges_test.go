package house

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var updateBadges = flag.Bool("update-badges", false, "draw docs/suites.svg anew, and say in README.md what it shows")

// The README shows what the last runs of other people's tests through the proxy have recorded.
func TestBadgesShowWhatWasRun(t *testing.T) {
	t.Parallel()
	texts := files(t)
	var suites map[string]map[string]struct{ Tests, Same int }
	if err := json.Unmarshal([]byte(texts["docs/suites.json"]), &suites); err != nil {
		t.Fatal(err)
	}
	own, others := badge{label: "PostgreSQL's own tests"}, badge{label: "drivers' tests"}
	for name, ways := range suites {
		b := &others
		switch name {
		case "regress", "isolation":
			b = &own
		case "redis-py", "go-redis":
			continue
		}
		through := ways["without a fence"]
		b.tests += through.Tests
		b.same += through.Same
	}
	svg, shown := draw(&own, &others)
	alt := regexp.MustCompile(`!\[[^\]]*\]\(docs/suites\.svg\)`)
	readme := alt.ReplaceAllLiteralString(texts["README.md"], "!["+shown+"](docs/suites.svg)")
	if *updateBadges {
		for name, text := range map[string]string{"docs/suites.svg": svg, "README.md": readme} {
			if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	if own.tests == 0 || others.tests == 0 || !alt.MatchString(readme) {
		t.Error("figures are missing, or README.md doesn't show them")
	}
	if readme != texts["README.md"] || svg != texts["docs/suites.svg"] {
		t.Error("run go test ./internal/house -run TestBadgesShowWhatWasRun -update-badges: docs/suites.json was written since")
	}
}

// badge says how many tests through the proxy end as directly.
type badge struct {
	label       string
	tests, same int
}

// draw draws badges side by side, and says the same in words.
func draw(badges ...*badge) (svg, words string) {
	const height, space, letter = 20, 8, 6.6
	var parts, said []string
	x := 0
	part := func(text, colour string) {
		wide := int(letter*float64(len(text))) + 2*space
		parts = append(parts, fmt.Sprintf(`  <rect x="%d" width="%d" height="%d" fill="%s"/>
  <text x="%d" y="14" textLength="%d">%s</text>`, x, wide, height, colour, x+space, wide-2*space, text))
		x += wide
	}
	for _, b := range badges {
		colour, value := "#1a7f37", fmt.Sprintf("%d of %d", b.same, b.tests)
		if b.same < b.tests {
			colour = "#9a6700"
		}
		part(b.label+" through the proxy", "#444c56")
		part(value, colour)
		x += space
		said = append(said, b.label+" "+value)
	}
	words = "Tests that end through the proxy as directly: " + strings.Join(said, ", ")
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-labelledby="title" font-family="Verdana, sans-serif" font-size="11" fill="#ffffff">
  <title id="title">%s</title>
%s
</svg>
`, x-space, height, x-space, height, words, strings.Join(parts, "\n")), words
}
