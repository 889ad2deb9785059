package drivertest

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var page = flag.String("page", "", "write what came of the whole matrix to this file")

// results gather what came of each cell. Safe for concurrent use.
type results struct {
	mu       sync.Mutex
	servers  []string          // full versions
	versions map[string]string // of drivers
	unmarked map[string]string // what a comment doesn't reach, by driver
	passed   map[string]map[cell]bool
}

func newResults() *results {
	return &results{versions: map[string]string{}, unmarked: map[string]string{}, passed: map[string]map[cell]bool{}}
}

func (r *results) driver(d driver, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.versions[d.name] = version
	r.passed[d.name] = map[cell]bool{}
}

func (r *results) cell(d driver, c cell, lines []string, passed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed[d.name][c] = passed
	r.unmarked[d.name] = unreached(lines)
}

// unreached names what no comment of the program's can fence.
func unreached(lines []string) string {
	var names []string
	for _, line := range lines {
		letter, text, _ := strings.Cut(line, " ")
		name, _, _ := strings.Cut(text, ":")
		if _, behind, several := strings.Cut(name, " / "); several {
			name = behind // the mode
		}
		if letter == declares {
			name += " (`WF006`)"
		}
		if (letter == unmarked || letter == declares) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// serversLine begins the part of docs/reference/compatibility.md that the matrix writes.
const serversLine = "\n\nPostgreSQL "

// page returns the page as the matrix writes it, with the text that it had before its tables.
func (r *results) page(written string) string {
	var b strings.Builder
	head, _, _ := strings.Cut(written, serversLine)
	b.WriteString(head)
	fmt.Fprintf(&b, serversLine+"%s.\n\n", strings.Join(r.servers, ", "))
	fmt.Fprint(&b, "| driver | version |")
	for _, sec := range securities {
		fmt.Fprintf(&b, " %s |", sec.title())
	}
	fmt.Fprintf(&b, "\n|---|---|%s\n", strings.Repeat("---|", len(securities)))
	for _, d := range drivers {
		fmt.Fprintf(&b, "| %s | %s |", d.name, r.versions[d.name])
		for _, sec := range securities {
			fmt.Fprintf(&b, " %s |", r.square(d, sec))
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprint(&b, "\n¹ With TLS on both sides, but without channel binding: the driver doesn't know it.\n")
	fmt.Fprint(&b, "\n## What the programs do\n\n| driver | besides what all do | out of a comment's reach | not in its interface |\n|---|---|---|---|\n")
	for _, d := range drivers {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", d.name, d.does, dash(r.unmarked[d.name]), dash(d.lacks))
	}
	return b.String()
}

func dash(text string) string {
	if text == "" {
		return "–"
	}
	return text
}

// square lists the versions; those that failed are struck out, those that didn't
// run are left out.
func (r *results) square(d driver, sec security) string {
	var all []string
	for _, version := range versions {
		switch passed, ran := r.passed[d.name][cell{version, sec}]; {
		case passed:
			all = append(all, fmt.Sprint(version))
		case ran:
			all = append(all, fmt.Sprintf("~~%d~~", version))
		}
	}
	text := strings.Join(all, " ")
	if sec == binding && !d.binding {
		text += " ¹"
	}
	return text
}

// The page lists what the code knows, all of it passed. The versions of drivers
// and servers are those of the machine that wrote it.
func TestCompatibilityPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	r := newResults()
	found := regexp.MustCompile(`(?m)^PostgreSQL (\d+\.\d+(?:, \d+\.\d+)*)\.$`).FindSubmatch(text)
	if found == nil {
		t.Fatal("docs/reference/compatibility.md names no servers")
	}
	r.servers = strings.Split(string(found[1]), ", ")
	for i, version := range r.servers {
		if i >= len(versions) || !strings.HasPrefix(version, fmt.Sprintf("%d.", versions[i])) {
			t.Errorf("docs/reference/compatibility.md names PostgreSQL %s as number %d", version, i+1)
		}
	}
	rows := map[string][][]string{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.Trim(line, "|\n "), " | "); len(fields) > 2 {
			rows[fields[0]] = append(rows[fields[0]], fields)
		}
	}
	for _, d := range drivers {
		if len(rows[d.name]) != 2 {
			t.Errorf("docs/reference/compatibility.md has %d rows for %s", len(rows[d.name]), d.name)
			continue
		}
		version, reach := rows[d.name][0][1], rows[d.name][1][2]
		if !regexp.MustCompile(`^\d+(\.\d+)+$`).MatchString(version) {
			t.Errorf("docs/reference/compatibility.md has %q as the version of %s", version, d.name)
		}
		r.driver(d, version)
		r.unmarked[d.name] = strings.TrimPrefix(reach, "–")
		for _, c := range cells(0, true) {
			r.passed[d.name][c] = true
		}
	}
	if want := r.page(string(text)); want != string(text) {
		t.Errorf("docs/reference/compatibility.md isn't what the matrix would write now: run make matrix. It should be\n%s", want)
	}
}
