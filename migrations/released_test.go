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
// would leave two schemas with one version. A release brings at most one migration.
func TestReleasedMigrationsAreFrozen(t *testing.T) {
	released, names := strings.Fields(releasedSums), numbered()
	if n := len(names) - len(released)/2; len(released) > 0 && (n < 0 || n > 1) {
		t.Fatalf("%d migrations since the release", n)
	}
	for i := 0; i+1 < len(released); i += 2 {
		if name := names[i/2]; released[i+1] != name || released[i] != fmt.Sprintf("%x", sha256.Sum256([]byte(source(name)))) {
			t.Errorf("%s was released and can't be changed: add a migration", name)
		}
	}
}
