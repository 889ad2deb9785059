package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const folder = "../dashboards"

func TestDashboardsAreGenerated(t *testing.T) {
	t.Parallel()
	for name, d := range dashboards() {
		want, err := encode(d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s is not what is generated: run go generate ./deploy/mixin", name)
		}
	}
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if _, known := dashboards()[file.Name()]; !known {
			t.Errorf("%s is not generated", file.Name())
		}
	}
}

func TestDashboards(t *testing.T) {
	t.Parallel()
	uids := map[string]bool{}
	for name, d := range dashboards() {
		if uids[d.UID] {
			t.Errorf("%s: its uid is another's", name)
		}
		uids[d.UID] = true
		for _, problem := range lint(d) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// The linter notices what is wrong.
func TestLint(t *testing.T) {
	t.Parallel()
	for problem, spoil := range map[string]func(*dashboard){
		"has no variable datasource":     func(d *dashboard) { d.Templating.List = d.Templating.List[1:] },
		"has no variable nowhere":        func(d *dashboard) { d.Panels[1].Targets[0].Expr = `up{job="$nowhere"}` },
		"has the id of another":          func(d *dashboard) { d.Panels[2].ID = d.Panels[1].ID },
		"has the title of another":       func(d *dashboard) { d.Panels[2].Title = d.Panels[1].Title },
		"overlaps":                       func(d *dashboard) { d.Panels[2].GridPos = d.Panels[1].GridPos },
		"has no target":                  func(d *dashboard) { d.Panels[1].Targets = nil },
		"has a data source of its own":   func(d *dashboard) { d.Panels[1].Targets[0].Datasource = &datasource{UID: "mine"} },
		"asks for another job than $job": func(d *dashboard) { d.Panels[1].Targets[0].Expr = "wirefence_sessions" },
		"has no description":             func(d *dashboard) { d.Panels[1].Description = "" },
	} {
		d := fleet()
		spoil(&d)
		if !slices.ContainsFunc(lint(d), func(p string) bool { return strings.Contains(p, problem) }) {
			t.Errorf("not noticed: a panel %s", problem)
		}
	}
}

var (
	variableUse = regexp.MustCompile(`\$\{?(\w+)`)
	selector    = regexp.MustCompile(`(?:wirefence_|process_|:wirefence_)\w+(?::\w+)?(\{[^}]*\})?`)
)

// lint says what is wrong with a dashboard.
func lint(d dashboard) (problems []string) {
	known := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		known = append(known, v.Name)
	}
	if len(d.Templating.List) == 0 || d.Templating.List[0].Type != "datasource" {
		problems = append(problems, "has no variable datasource")
	}
	for i, p := range d.Panels {
		about := func(problem string) { problems = append(problems, p.Title+" "+problem) }
		for _, other := range d.Panels[:i] {
			if other.ID == p.ID {
				about("has the id of another")
			}
			if other.Title == p.Title {
				about("has the title of another")
			}
			if overlap(other.GridPos, p.GridPos) {
				about("overlaps " + other.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 {
			about("has no target")
		}
		if p.Description == "" {
			about("has no description")
		}
		for _, target := range p.Targets {
			if target.Datasource == nil || target.Datasource.UID != "${datasource}" {
				about("has a data source of its own")
			}
			for _, use := range variableUse.FindAllStringSubmatch(target.Expr, -1) {
				if !slices.Contains(known, use[1]) {
					about("has no variable " + use[1])
				}
			}
			for _, match := range selector.FindAllStringSubmatch(target.Expr, -1) {
				if !strings.Contains(match[1], `job="$job"`) {
					about("asks for another job than $job")
				}
			}
		}
	}
	return problems
}

func overlap(a, b grid) bool {
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}
