package deploy

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
)

var valueRow = regexp.MustCompile("(?m)^\\| `([a-zA-Z.]+)` \\| `(.*?)` \\| (.+) \\|$")

// The chart's README has a row for each value, with its default.
func TestChartReadme(t *testing.T) {
	t.Parallel()
	for _, miss := range readmeMisses(t, read(t, chartDir+"/README.md"), loadChart(t).Values) {
		t.Error(miss)
	}
}

func TestChartReadmeBroken(t *testing.T) {
	t.Parallel()
	text, values := read(t, chartDir+"/README.md"), loadChart(t).Values
	for _, c := range []struct{ old, replacement, noticed string }{
		{"| `service.port` | `6433`", "| `service.port` | `5432`", "service.port is 6433"},
		{"| `service.port` |", "| `service.ports` |", "service.ports is no value"},
		{"| `tls.mode` |", "| tls.mode |", "tls.mode has no row"},
	} {
		expect(t, readmeMisses(t, broken(t, text, c.old, c.replacement), values), c.noticed)
	}
}

func readmeMisses(t *testing.T, text string, values chartutil.Values) (misses []string) {
	t.Helper()
	rows := map[string]bool{}
	for _, row := range valueRow.FindAllStringSubmatch(text, -1) {
		path, written := row[1], row[2]
		rows[path] = true
		value, known := at(values, strings.Split(path, "."))
		if !known {
			misses = append(misses, path+" is no value")
			continue
		}
		is, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if string(is) != written {
			misses = append(misses, path+" is "+string(is)+", and "+written+" in the README")
		}
	}
	return append(misses, withoutRow(values, "", rows)...)
}

func at(values map[string]any, path []string) (value any, known bool) {
	value, known = values[path[0]]
	if below, is := value.(map[string]any); known && is && len(path) > 1 {
		return at(below, path[1:])
	}
	return value, known && len(path) == 1
}

// withoutRow are the values that have no row, nor is what they belong to in one.
func withoutRow(values map[string]any, prefix string, rows map[string]bool) (misses []string) {
	for name, value := range values {
		path := prefix + name
		if rows[path] {
			continue
		}
		if below, is := value.(map[string]any); is && len(below) > 0 {
			misses = append(misses, withoutRow(below, path+".", rows)...)
		} else {
			misses = append(misses, path+" has no row")
		}
	}
	return misses
}
