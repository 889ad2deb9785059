//go:build linux

package incidenttest

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// dashboard is what of a dashboard asks for data.
type dashboard struct {
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		Type, Title string
		Targets     []struct{ Expr string }
	}
}

var (
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	variables   = strings.NewReplacer("$job", "app", "$resource", "orders", "$__rate_interval", "1m")
)

// show runs every query of the dashboards, each of which must yield data, and those of
// their variables, which must offer what is shown.
func (m *monitor) show(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("../dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no dashboards were found: ", err)
	}
	queries := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, v := range d.Templating.List {
			if v.Type == "query" && !m.offers(t, v.Query, variables.Replace("$"+v.Name)) {
				t.Errorf("%s: %s doesn't offer %s", file, v.Query, variables.Replace("$"+v.Name))
			}
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				queries++
				if !m.yields(t, variables.Replace(target.Expr)) {
					t.Errorf("%s, %s: no data: %s", filepath.Base(file), p.Title, target.Expr)
				}
			}
		}
	}
	t.Logf("%d queries", queries)
}

// yields waits for data: the rate of a series that is new takes two scrapes.
func (m *monitor) yields(t *testing.T, expr string) bool {
	t.Helper()
	for began := time.Now(); m.query(t, expr) == 0; time.Sleep(200 * time.Millisecond) {
		if time.Since(began) > 5*time.Second {
			return false
		}
	}
	return true
}

// offers reports whether a variable's query has a value.
func (m *monitor) offers(t *testing.T, query, value string) bool {
	t.Helper()
	of := labelValues.FindStringSubmatch(variables.Replace(query))
	if of == nil {
		t.Errorf("%s is no query of label values", query)
		return false
	}
	var answer struct{ Data []string }
	ask(t, m.prometheus.URL()+"/api/v1/label/"+of[2]+"/values?match[]="+url.QueryEscape(of[1]), &answer)
	for _, one := range answer.Data {
		if one == value {
			return true
		}
	}
	return false
}
