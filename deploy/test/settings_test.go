package deploy

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documented returns the settings that the operations page has a table row for, and the
// variables for files of those that may be in one.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	names, page := map[string]bool{}, read(t, "../../docs/operations.md")
	for _, match := range regexp.MustCompile("(?m)^\\| `(WIREFENCE_[A-Z_]+)` \\|.*$").FindAllStringSubmatch(page, -1) {
		names[match[1]] = true
		names[match[1]+"_FILE"] = strings.Contains(match[0], "(#passwords-in-files)")
	}
	if len(names) == 0 || !names["WIREFENCE_UPSTREAM_FILE"] {
		t.Fatal("docs/operations.md has no table of settings, or none that may be in a file")
	}
	return names
}

// proxyNeeds are the settings without which a deployed proxy is of no use: where clients
// connect, what is probed, what is before it, and who issues.
var proxyNeeds = []string{
	"WIREFENCE_LISTEN", "WIREFENCE_ADMIN_LISTEN", "WIREFENCE_UPSTREAM",
	"WIREFENCE_DATABASE_URL",
}

// settingsMisses says what is wrong with the environment of a container that
// runs `wirefence command`. A value that comes from a secret is "".
func settingsMisses(command string, env map[string]string, known map[string]bool) (misses []string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !known[name] && name != "GOMEMLIMIT" {
			misses = append(misses, name+" is no setting of Wirefence")
		}
	}
	needs := proxyNeeds
	if command == "migrate" {
		needs = []string{"WIREFENCE_DATABASE_URL"}
		if has(env, "WIREFENCE_OWNER_URL") {
			needs = nil
		}
	}
	for _, name := range needs {
		if !has(env, name) {
			misses = append(misses, name+" is not set")
		}
	}
	if command == "proxy" && !strings.HasPrefix(env["WIREFENCE_ADMIN_LISTEN"], "0.0.0.0:") {
		misses = append(misses, "probes can't reach WIREFENCE_ADMIN_LISTEN")
	}
	return misses
}

// has says that a setting is there, by itself or as the name of a file with its value.
func has(env map[string]string, name string) bool {
	_, value := env[name]
	_, file := env[name+"_FILE"]
	return value || file
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// broken returns text with its first old replaced, which must be there.
func broken(t *testing.T, text, old, replacement string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("there is no %q to break", old)
	}
	return strings.Replace(text, old, replacement, 1)
}

// expect fails unless a report says it.
func expect(t *testing.T, misses []string, want string) {
	t.Helper()
	if !slices.ContainsFunc(misses, func(m string) bool { return strings.Contains(m, want) }) {
		t.Errorf("not noticed: %s; reported: %q", want, misses)
	}
}
