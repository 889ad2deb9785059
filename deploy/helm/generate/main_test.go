package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

func TestSchemaIsGenerated(t *testing.T) {
	t.Parallel()
	want, err := generated(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, schema))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what is generated: run go generate ./deploy/helm", schema)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs/reference/settings.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := settings(string(page))
	for _, name := range []string{"WIREFENCE_HOLD", "WIREFENCE_ETCD_URL", "WIREFENCE_ETCD_URL_FILE", "WIREFENCE_TTL"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is left out", name)
		}
	}
	for _, name := range []string{"WIREFENCE_LISTEN", "WIREFENCE_WAIT", "WIREFENCE_UPSTREAM_FILE", "WIREFENCE_TTL_FILE"} {
		if slices.Contains(names, name) {
			t.Errorf("%s is the chart's own, or no setting of the proxy", name)
		}
	}
}

func TestWithSettings(t *testing.T) {
	t.Parallel()
	schema := "{\"propertyNames\": {\n  \"enum\": [\"OLD\"]\n}}"
	got, err := withSettings(schema, []string{"A", "B"})
	if err != nil || strings.Contains(got, "OLD") || !strings.Contains(got, `"B"`) {
		t.Errorf("%s, %v", got, err)
	}
	for _, broken := range []string{"{}", schema + schema} {
		if _, err := withSettings(broken, []string{"A"}); err == nil {
			t.Errorf("%s is accepted", broken)
		}
	}
	if _, err := withSettings(schema, nil); err == nil {
		t.Error("no settings are accepted")
	}
}
