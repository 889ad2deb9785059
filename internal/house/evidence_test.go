package house

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateEvidence = flag.Bool("update-evidence", false, "write the table of docs/reference/evidence.md anew")

// claim is a row of the table in docs/guarantees.md. Marks in the sources name its key, as in
// "Evidence: I2, I5": above a test or an alert, and behind an assertion of a model.
type claim struct {
	key, name                    string
	model, tests, metric, alerts []string
}

var (
	claimRow  = regexp.MustCompile(`(?m)^\| \*\*(?:(I\d): )?([^*]+)\*\* \|`)
	testMark  = regexp.MustCompile(`(?m)^// Evidence: (.+)\n(?://.*\n)*func ((?:Test|Fuzz)\w+)\(`)
	modelMark = regexp.MustCompile(`(?m)^.*?assert\((.*?)\)[^()]*/\* Evidence: ([^*]+) \*/`)
	alertMark = regexp.MustCompile(`(?m)^ *# Evidence: (.+)\n *- alert: (\w+)\n((?: {8}.*\n)+)`)
	metric    = regexp.MustCompile(`wirefence_[a-z_]+`)
	anyMark   = regexp.MustCompile(`(?m)^\s*(?://|#) Evidence: .+$|/\* Evidence: [^*]+\*/`)
)

// claims reads the claims and what the marks say of them. wrong are marks that say nothing.
func claims(texts map[string]string) (all []*claim, wrong []string) {
	byKey := map[string]*claim{}
	for _, row := range claimRow.FindAllStringSubmatch(texts["docs/guarantees.md"], -1) {
		c := &claim{key: row[1], name: row[2]}
		if c.key == "" {
			c.key = strings.ReplaceAll(strings.ToLower(strings.ReplaceAll(c.name, "'", "")), " ", "-")
		}
		all, byKey[c.key] = append(all, c), c
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		text, marks := texts[name], 0
		each := func(keys string, note func(c *claim)) {
			marks++
			for key := range strings.SplitSeq(keys, ",") {
				if c := byKey[strings.TrimSpace(key)]; c != nil {
					note(c)
				} else {
					wrong = append(wrong, fmt.Sprintf("%s: no claim of docs/guarantees.md is called %q", name, key))
				}
			}
		}
		link := func(what string) string { return fmt.Sprintf("[%s](../../%s)", what, name) }
		switch path.Ext(name) {
		case ".go":
			for _, m := range testMark.FindAllStringSubmatch(text, -1) {
				each(m[1], func(c *claim) { c.tests = append(c.tests, link(m[2])) })
			}
		case ".pml":
			for _, m := range modelMark.FindAllStringSubmatch(text, -1) {
				each(m[2], func(c *claim) { c.model = append(c.model, link(path.Base(name))+": `"+m[1]+"`") })
			}
		case ".yaml":
			for _, m := range alertMark.FindAllStringSubmatch(text, -1) {
				each(m[1], func(c *claim) {
					c.alerts = append(c.alerts, fmt.Sprintf("[%s](alerts.md#%s)", m[2], strings.ToLower(m[2])))
					for _, found := range metric.FindAllString(m[3], -1) {
						if strings.Contains(texts["docs/reference/metrics.md"], "`"+found+"_total`") {
							found += "_total"
						}
						c.metric = append(c.metric, "`"+strings.TrimSuffix(found, "_bucket")+"`")
					}
				})
			}
		default:
			continue
		}
		if n := len(anyMark.FindAllString(text, -1)); n != marks && name != "internal/house/evidence_test.go" {
			wrong = append(wrong, fmt.Sprintf("%s: of %d marks %d are at a test, an alert or an assertion", name, n, marks))
		}
	}
	return all, wrong
}

// table is the table of docs/reference/evidence.md.
func table(all []*claim) string {
	cell := func(parts ...[]string) string {
		var texts []string
		for _, part := range parts {
			texts = append(texts, slices.Compact(slices.Sorted(slices.Values(part)))...)
		}
		return strings.Join(texts, ", ")
	}
	text := "| claim | in the model | tests | metrics and alerts |\n|---|---|---|---|\n"
	for _, c := range all {
		text += fmt.Sprintf("| %s%s | %s | %s | %s |\n", strings.TrimPrefix(c.key+": ", strings.ToLower(c.key)+": "), c.name, cell(c.model), cell(c.tests), cell(c.metric, c.alerts))
	}
	return text
}

// Each invariant and each claim has a test, and docs/reference/evidence.md has the table of them.
func TestEachClaimHasATest(t *testing.T) {
	t.Parallel()
	texts := files(t)
	all, wrong := claims(texts)
	for _, text := range wrong {
		t.Error(text)
	}
	for n := range 9 {
		if key := fmt.Sprint("I", n+1); !slices.ContainsFunc(all, func(c *claim) bool { return c.key == key }) {
			t.Errorf("docs/guarantees.md has no claim %s", key)
		}
	}
	for _, c := range all {
		if len(c.tests) == 0 {
			t.Errorf("no test is marked with the claim %s: %s", c.key, c.name)
		}
	}
	const begin, end = "<!-- claims: begin -->\n", "<!-- claims: end -->"
	page := texts["docs/reference/evidence.md"]
	head, rest, ok := strings.Cut(page, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("docs/reference/evidence.md has no place for the table")
	}
	want := head + begin + "\n" + table(all) + "\n" + end + tail
	if *updateEvidence {
		if err := os.WriteFile(filepath.Join(root, "docs/reference/evidence.md"), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != page {
		t.Error("the table of docs/reference/evidence.md isn't that of the marks: go test ./internal/house -run TestEachClaimHasATest -update-evidence")
	}
}

func TestMarksAreRead(t *testing.T) {
	t.Parallel()
	texts := map[string]string{
		"docs/guarantees.md":        "| | |\n|---|---|\n| **I1: One** | so |\n| **It's another** | so |\n| **None** | |\n",
		"docs/reference/metrics.md": "| `wirefence_a_total` |\n",
		"a_test.go":                 "// Evidence: I1, its-another\n//\n// More.\nfunc TestA(t *testing.T) {}\n// Evidence: I3\nfunc TestB(t *testing.T) {}\n// Evidence: I1\ntype a int\n",
		"m.pml":                     "  assert(a <= b); /* Evidence: I1 */\n",
		"alerts.yaml":               "      # Evidence: I1\n      - alert: A\n        expr: job:wirefence_a:rate > wirefence_b\n",
	}
	all, wrong := claims(texts)
	if len(wrong) != 2 || !strings.Contains(wrong[0], `"I3"`) || !strings.Contains(wrong[1], "of 3 marks 2") {
		t.Errorf("wrong are %q", wrong)
	}
	want := "| I1: One | [m.pml](../../m.pml): `a <= b` | [TestA](../../a_test.go) | `wirefence_a_total`, `wirefence_b`, [A](alerts.md#a) |\n" +
		"| It's another |  | [TestA](../../a_test.go) |  |\n| None |  |  |  |\n"
	if got := table(all); !strings.HasSuffix(got, want) {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}
