package drivertest

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/authority"
)

var whole = flag.Bool("matrix", false, "run the whole matrix instead of a slice")

// versions are the major versions of PostgreSQL that are supported.
var versions = []int{14, 15, 16, 17, 18}

// cell is a square of a driver's table.
type cell struct {
	version  int
	security security
}

// cells returns what is run of a driver: all, or a diagonal that goes with each
// security to a version of its own. Over the drivers, it meets every version
// with every security.
func cells(driver int, all bool) (chosen []cell) {
	for s, sec := range securities {
		for v, version := range versions {
			if all || (driver+2*s)%len(versions) == v {
				chosen = append(chosen, cell{version, sec})
			}
		}
	}
	return chosen
}

// carriers are what is tried in a cell: whatever the driver has a place for. With
// TLS a slice makes do with one, which goes round with the drivers.
func carriers(driver int, c cell, all bool) (chosen []carrier) {
	for _, by := range []carrier{byOptions, bySet, byComment} {
		if !slices.Contains(drivers[driver].without, by) {
			chosen = append(chosen, by)
		}
	}
	if all || c.security == plain {
		return chosen
	}
	one := driver % len(chosen)
	return chosen[one : one+1]
}

func TestMatrix(t *testing.T) {
	if *page != "" && !*whole {
		t.Fatal("a page of a slice would say too much: add -matrix")
	}
	certificates := authority.New(t)
	started := startAll(t, certificates)
	results := newResults()
	for _, version := range versions {
		results.servers = append(results.servers, started[version].version(t))
	}
	t.Run("driver", func(t *testing.T) {
		for i, d := range drivers {
			t.Run(strings.NewReplacer("/", "-", ", ", "_").Replace(d.name), func(t *testing.T) {
				t.Parallel()
				results.driver(d, d.version(t))
				run := d.start(t, environment(certificates.CAFile))
				for _, c := range cells(i, *whole) {
					t.Run(fmt.Sprintf("%d/%s", c.version, c.security), func(t *testing.T) {
						var lines []string
						defer func() { results.cell(d, c, lines, !t.Failed()) }()
						r := started[c.version].rig(t, fmt.Sprintf("driver%d_%s", i, c.security))
						lines = runCell(t, ways(r, c.security, carriers(i, c, *whole)), run)
					})
				}
			})
		}
	})
	if *page != "" {
		written, err := os.ReadFile(*page)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(*page, []byte(results.page(string(written))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// runCell runs all ways of a cell and holds them against the first, whose lines it
// returns.
func runCell(t *testing.T, all []way, run runner) (want []string) {
	t.Helper()
	for _, w := range all {
		w.rig.exec(t, "TRUNCATE t, u")
		got := run(t, w)
		if want == nil {
			sound(t, got)
			want = got
		}
		compare(t, w, got, want)
	}
	return want
}

// The slice meets every driver, every version and every security, and each
// version with each security.
func TestSlice(t *testing.T) {
	t.Parallel()
	met := map[cell]bool{}
	tried := map[carrier]bool{}
	for i, d := range drivers {
		tried[carriers(i, cell{versions[0], binding}, false)[0]] = true
		chosen := cells(i, false)
		if len(chosen) != len(securities) {
			t.Errorf("%s: %d cells", d.name, len(chosen))
		}
		for _, c := range chosen {
			met[c] = true
		}
	}
	for _, c := range cells(0, true) {
		if !met[c] {
			t.Errorf("no driver meets %v", c)
		}
	}
	if len(tried) != 3 {
		t.Errorf("of the carriers only %v are tried with TLS", tried)
	}
	if n := len(cells(0, true)); n != len(versions)*len(securities) {
		t.Errorf("the whole matrix has %d cells for a driver", n)
	}
	if !slices.IsSorted(versions) {
		t.Error("the versions are not in order")
	}
}
