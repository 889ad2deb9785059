// Command generate brings the schema of the chart's values up to date with the settings of
// this repository. It is run by `go generate ./deploy/helm`.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	text, err := generated("../..")
	if err == nil {
		err = os.WriteFile(filepath.Join("../..", schema), []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

const schema = "deploy/helm/wirefence/values.schema.json"

// generated returns the schema with the settings that the page lists.
func generated(root string) (string, error) {
	page, err := os.ReadFile(filepath.Join(root, "docs/reference/settings.md"))
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, schema))
	if err != nil {
		return "", err
	}
	return withSettings(string(text), settings(string(page)))
}

// ofChart are settings that the chart makes from values of its own.
var ofChart = []string{
	"WIREFENCE_ADMIN_LISTEN", "WIREFENCE_ADMIN_TLS_CERT_FILE", "WIREFENCE_ADMIN_TLS_KEY_FILE",
	"WIREFENCE_ADMIN_TOKEN_FILE", "WIREFENCE_API_LISTEN", "WIREFENCE_AUTH_FILE",
	"WIREFENCE_DATABASE_URL", "WIREFENCE_DATABASE_URL_FILE", "WIREFENCE_LEASE",
	"WIREFENCE_LISTEN", "WIREFENCE_MODE", "WIREFENCE_OWNER_URL", "WIREFENCE_OWNER_URL_FILE",
	"WIREFENCE_REDIS_URL", "WIREFENCE_REDIS_URL_FILE", "WIREFENCE_STANDBY",
	"WIREFENCE_TLS_CERT_FILE", "WIREFENCE_TLS_CLIENT_CA_FILE", "WIREFENCE_TLS_CLIENT_CERT",
	"WIREFENCE_TLS_KEY_FILE", "WIREFENCE_TLS_MIN_VERSION", "WIREFENCE_TLS_MODE",
	"WIREFENCE_UPSTREAM", "WIREFENCE_UPSTREAM_FILE",
}

var row = regexp.MustCompile("(?m)^\\| `(WIREFENCE_[A-Z_]+)` \\|.*$")

// settings are those of `wirefence proxy` that a page lists, and their variables for files,
// without the chart's own.
func settings(page string) (names []string) {
	page, _, _ = strings.Cut(page, "\n### Settings of other commands\n")
	for _, match := range row.FindAllStringSubmatch(page, -1) {
		names = append(names, match[1])
		if strings.Contains(match[0], "(#passwords-in-files)") {
			names = append(names, match[1]+"_FILE")
		}
	}
	names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(ofChart, n) })
	slices.Sort(names)
	return slices.Compact(names)
}

var enum = regexp.MustCompile(`("propertyNames": \{\n\s+"enum": )\[[^\]]*\]`)

// withSettings puts the names into the schema, as those that `settings` of the values may
// have.
func withSettings(schema string, names []string) (string, error) {
	if len(names) == 0 {
		return "", fmt.Errorf("docs/reference/settings.md has no table of settings")
	}
	if found := enum.FindAllString(schema, -1); len(found) != 1 {
		return "", fmt.Errorf("the schema has %d places for the names of settings", len(found))
	}
	list, err := json.MarshalIndent(names, "        ", "  ")
	if err != nil {
		return "", err
	}
	return enum.ReplaceAllString(schema, "${1}"+string(list)), nil
}
