package deploy

import (
	"encoding/json"
	"regexp"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
)

var valueRow = regexp.MustCompile("(?m)^\\| `([a-zA-Z.]+)` \\| `(.*?)` \\| (.+) \\|$")

// readmeMisses holds the README of the chart to a row for each value, with its default.
func readmeMisses(text string) (m misses) {
	c, err := loader.Load(chartDir)
	if err != nil {
		return misses{err.Error()}
	}
	rows := map[string]bool{}
	for _, row := range valueRow.FindAllStringSubmatch(text, -1) {
		path, written := row[1], row[2]
		rows[path] = true
		value, known := at(c.Values, strings.Split(path, "."))
		is, err := json.Marshal(value)
		m.want(known, "%s is no value", path)
		m.want(!known || err == nil && string(is) == written, "%s is %s, and %s in the README", path, is, written)
	}
	m.add("", withoutRow(c.Values, "", rows))
	return m
}

func at(values map[string]any, path []string) (value any, known bool) {
	value, known = values[path[0]]
	if below, is := value.(map[string]any); known && is && len(path) > 1 {
		return at(below, path[1:])
	}
	return value, known && len(path) == 1
}

// withoutRow are the values that have no row, nor is what they belong to in one.
func withoutRow(values map[string]any, prefix string, rows map[string]bool) (m misses) {
	for name, value := range values {
		path := prefix + name
		if rows[path] {
			continue
		}
		if below, is := value.(map[string]any); is && len(below) > 0 {
			m.add("", withoutRow(below, path+".", rows))
		} else {
			m.want(false, "%s has no row", path)
		}
	}
	return m
}
