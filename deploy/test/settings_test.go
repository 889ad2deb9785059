package deploy

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// documented returns the settings that the operations page has a table row for, and the
// variables for files of those that may be in one.
var documented = sync.OnceValue(func() map[string]bool {
	page, err := os.ReadFile("../../docs/reference/settings.md")
	if err != nil {
		panic(err)
	}
	names := map[string]bool{"GOMEMLIMIT": true}
	for _, match := range regexp.MustCompile("(?m)^\\| `(WIREFENCE_[A-Z_]+)` \\|.*$").FindAllStringSubmatch(string(page), -1) {
		names[match[1]] = true
		names[match[1]+"_FILE"] = strings.Contains(match[0], "(#passwords-in-files)")
	}
	return names
})

// proxyNeeds are the settings without which a deployed proxy is of no use: where clients
// connect, what is probed, what is before it, and who issues.
var proxyNeeds = []string{
	"WIREFENCE_LISTEN", "WIREFENCE_ADMIN_LISTEN", "WIREFENCE_UPSTREAM",
	"WIREFENCE_DATABASE_URL",
}

// settingsMisses says what is wrong with the environment of a container that
// runs `wirefence command`. A value that comes from a secret is "".
func settingsMisses(command string, env map[string]string) (m misses) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		m.want(documented()[name], "%s is no setting of Wirefence", name)
	}
	needs := proxyNeeds
	if command == "migrate" {
		needs = []string{"WIREFENCE_DATABASE_URL"}
		if has(env, "WIREFENCE_OWNER_URL") {
			needs = nil
		}
	}
	for _, name := range needs {
		m.want(has(env, name), "%s is not set", name)
	}
	m.want(command != "proxy" || strings.HasPrefix(env["WIREFENCE_ADMIN_LISTEN"], "0.0.0.0:"), "probes can't reach WIREFENCE_ADMIN_LISTEN")
	return m
}

// has says that a setting is there, by itself or as the name of a file with its value.
func has(env map[string]string, name string) bool {
	_, value := env[name]
	_, file := env[name+"_FILE"]
	return value || file
}
