package mixin

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// promtool runs it in this folder and returns what it says.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing: install the package prometheus, as scripts/install-servers --test does")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	return string(out), err
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRules(t *testing.T) {
	t.Parallel()
	if out, err := promtool(t, "check", "rules", "--lint-fatal", "recording.yaml", "alerts.yaml"); err != nil {
		t.Errorf("promtool check rules: %v\n%s", err, out)
	}
	if out, err := promtool(t, "test", "rules", "tests.yaml"); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
}

var (
	alertLine  = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)
	recordLine = regexp.MustCompile(`(?m)^ +- record: (\S+)$`)
	fields     = regexp.MustCompile(`(?m)^ +(expr|severity|summary|description|runbook_url): `)
)

// names are what the first group of a pattern matches in a text.
func names(pattern *regexp.Regexp, text string) (all []string) {
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	return all
}

// alerts are the rules of alerts.yaml by name.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	text := read(t, "alerts.yaml")
	starts := alertLine.FindAllStringSubmatchIndex(text, -1)
	all := map[string]string{}
	for i, start := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		all[text[start[2]:start[3]]] = text[start[0]:end]
	}
	if len(all) == 0 || len(all) != len(starts) {
		t.Fatalf("alerts.yaml has %d alerts with %d names", len(starts), len(all))
	}
	return all
}

// Each rule is in tests.yaml, and an alert both as one that fires and one that doesn't.
func TestRulesHaveTests(t *testing.T) {
	t.Parallel()
	tests := read(t, "tests.yaml")
	for name := range alerts(t) {
		fires := regexp.MustCompile(`alertname: ` + name + `\n +exp_alerts:\n`).MatchString(tests)
		quiet := regexp.MustCompile(`alertname: ` + name + `\n( +- eval_time|\n| *promql_expr_test)`).MatchString(tests)
		if !fires || !quiet {
			t.Errorf("tests.yaml has %s firing: %v, and quiet: %v", name, fires, quiet)
		}
	}
	for _, name := range names(recordLine, read(t, "recording.yaml")) {
		if !strings.Contains(tests, name) && !strings.Contains(read(t, "alerts.yaml"), name) {
			t.Errorf("nothing tests %s", name)
		}
	}
}

func TestAlertsHaveTheirFields(t *testing.T) {
	t.Parallel()
	for name, rule := range alerts(t) {
		has := names(fields, rule)
		for _, field := range []string{"expr", "severity", "summary", "description", "runbook_url"} {
			if !slices.Contains(has, field) {
				t.Errorf("%s has no %s", name, field)
			}
		}
		if !regexp.MustCompile(`severity: (critical|warning)\n`).MatchString(rule) {
			t.Errorf("%s is neither critical nor warning", name)
		}
	}
}

// Each alert has a section in docs/reference/alerts.md, to which its runbook_url leads, and each
// section that is named like an alert has its alert.
func TestAlertsHaveTheirRunbooks(t *testing.T) {
	t.Parallel()
	sections := runbooks(read(t, "../../docs/reference/alerts.md"))
	for name, rule := range alerts(t) {
		section, has := sections[name]
		if !has {
			t.Errorf("docs/reference/alerts.md has no section %s", name)
		}
		for _, part := range []string{"**Means:**", "**Look at:**", "**Do:**", "**Harmless:**"} {
			if has && !strings.Contains(section, part) {
				t.Errorf("docs/reference/alerts.md: the section %s lacks %s", name, part)
			}
		}
		if !strings.Contains(rule, "/docs/reference/alerts.md#"+strings.ToLower(name)+"\n") {
			t.Errorf("runbook_url of %s leads elsewhere", name)
		}
	}
	for name := range sections {
		if _, has := alerts(t)[name]; !has {
			t.Errorf("docs/reference/alerts.md has a section %s, which is no alert", name)
		}
	}
}

// runbooks are the sections of a page that are named like alerts.
func runbooks(page string) map[string]string {
	sections := map[string]string{}
	for section := range strings.SplitSeq(page, "\n## ") {
		if title, text, _ := strings.Cut(section, "\n"); strings.HasPrefix(title, "Wirefence") {
			sections[title] = text
		}
	}
	return sections
}

var metricName = regexp.MustCompile(`\bwirefence_[a-z_]+\b`)

// given are series that don't come from a proxy.
var given = []string{"wirefence_resource_wanted"}

// Rules and dashboards ask for metrics that docs/reference/metrics.md has, which is held against
// what a proxy tells.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	metrics := names(regexp.MustCompile("(?m)^\\| `(wirefence_[a-z_]+)` \\|"), read(t, "../../docs/reference/metrics.md"))
	recorded := read(t, "recording.yaml")
	suffix := regexp.MustCompile(`_(bucket|sum|count)$`)
	for _, file := range []string{"recording.yaml", "alerts.yaml", "dashboards/fleet.json", "dashboards/resource.json"} {
		for _, name := range metricName.FindAllString(read(t, file), -1) {
			family := suffix.ReplaceAllString(name, "")
			if !slices.Contains(metrics, name) && !slices.Contains(metrics, family) && !slices.Contains(given, name) &&
				!strings.Contains(recorded, ":"+name+":") {
				t.Errorf("%s asks for %s, which docs/reference/metrics.md doesn't have", file, name)
			}
		}
	}
}
