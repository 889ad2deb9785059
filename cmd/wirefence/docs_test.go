package main

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestSettingsAreDocumented holds the settings in the code against the tables of
// docs/operations.md: every one is there, with its default.
func TestSettingsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) > 3 && strings.Contains(cells[1], "`"+prefix) {
			rows[strings.Trim(cells[1], " `")] = strings.Trim(cells[2], " `")
		}
	}
	seen := map[string]bool{}
	all := append(fields[proxySettings](), fields[lockSettings]()...) // whose defaults count, in this order
	for _, others := range [][]reflect.StructField{fields[migrateSettings](), fields[protectSettings](), fields[doctorSettings](), fields[statusSettings]()} {
		all = append(all, others...)
	}
	for _, f := range all {
		name, fallback := variable(f), f.Tag.Get("envDefault")
		if name == "" {
			continue // docs/cli.md has it
		}
		row, documented := rows[name]
		if !documented {
			t.Errorf("%s is not documented", name)
		}
		if first := !seen[name]; first && fallback != row && !(fallback == "" && (row == "none" || row == "required")) {
			t.Errorf("%s is %q by default, docs/operations.md says %q", name, fallback, row)
		}
		seen[name] = true
	}
	for name := range rows {
		if !seen[name] {
			t.Errorf("docs/operations.md documents %s, which is no setting", name)
		}
	}
}
