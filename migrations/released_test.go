package migrations

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"strings"
	"testing"
)

// releasedSums lists the migrations of the last release, as sha256sum prints them. It is empty
// until 0.1.0; CONTRIBUTING.md says how a release writes it.
//
//go:embed released.sha256
var releasedSums string

// A database that was migrated by a release never runs a migration again, so an edit of one
// would leave two schemas with one version.
func TestReleasedMigrationsAreFrozen(t *testing.T) {
	sources := map[string]string{}
	for _, name := range numbered() {
		sources[name] = source(name)
	}
	for _, fault := range edited(releasedSums, sources) {
		t.Error(fault)
	}
}

func TestEditsOfReleasedMigrationsAreNoticed(t *testing.T) {
	sum := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	first, second := sum("SELECT 1;")+"  001_a.sql\n", sum("SELECT 2;")+"  002_b.sql\n"
	for name, c := range map[string]struct {
		sums    string
		sources map[string]string
		faults  int
	}{
		"nothing is released": {"", map[string]string{"001_a.sql": "SELECT 1;"}, 0},
		"unchanged":           {first + second, map[string]string{"001_a.sql": "SELECT 1;", "002_b.sql": "SELECT 2;"}, 0},
		"a later one":         {first, map[string]string{"001_a.sql": "SELECT 1;", "002_b.sql": "SELECT 3;"}, 0},
		"a changed byte":      {first + second, map[string]string{"001_a.sql": "SELECT 1; ", "002_b.sql": "SELECT 2;"}, 1},
		"renamed":             {first, map[string]string{"001_c.sql": "SELECT 1;"}, 1},
		"removed":             {first + second, map[string]string{"001_a.sql": "SELECT 1;"}, 1},
		"not all are listed":  {second, map[string]string{"001_a.sql": "SELECT 1;", "002_b.sql": "SELECT 2;"}, 1},
		"no sum":              {"001_a.sql\n", map[string]string{"001_a.sql": "SELECT 1;"}, 1},
		"two later ones":      {first, map[string]string{"001_a.sql": "SELECT 1;", "002_b.sql": "SELECT 2;", "003_c.sql": "SELECT 3;"}, 1},
	} {
		if got := edited(c.sums, c.sources); len(got) != c.faults {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// edited returns how migrations differ from those with the sums of a release.
func edited(sums string, sources map[string]string) (faults []string) {
	line := 0
	for text := range strings.Lines(sums) {
		line++
		sum, name, found := strings.Cut(strings.TrimSpace(text), "  ")
		source, exists := sources[name]
		switch {
		case !found || !strings.HasPrefix(name, fmt.Sprintf("%03d_", line)):
			faults = append(faults, fmt.Sprintf("released.sha256:%d is %q, not the sum and the name of migration %03d", line, text, line))
		case !exists:
			faults = append(faults, name+" was released, and is gone")
		case fmt.Sprintf("%x", sha256.Sum256([]byte(source))) != sum:
			faults = append(faults, name+" was released and can't be changed: add a migration")
		}
	}
	if line > 0 && len(sources) > line+1 {
		faults = append(faults, fmt.Sprintf("%d migrations for one release: binaries work with a schema one version apart", len(sources)-line))
	}
	return faults
}
