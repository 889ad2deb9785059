package howto

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/pages"
)

// The commands of the front page work as they stand for a user who isn't root, and then a
// former holder is refused.
func TestTheFrontPage(t *testing.T) {
	t.Parallel()
	text, err := pages.First("../../README.md", "Mend the cron job: three commands, no proxy", "sh")
	if err != nil {
		t.Fatal(err)
	}
	db := bare(t)
	db.Exec(t, "SET ROLE app", "CREATE TABLE totals (day date)", "RESET ROLE")
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "nightly.sql"), []byte("INSERT INTO totals VALUES (current_date);\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var steps []pages.Step
	for command := range strings.Lines(text) {
		steps = append(steps, pages.Step{Terminal: "A", Input: strings.TrimSpace(command), Want: []string{"…"}})
	}
	if len(steps) != 4 {
		t.Errorf("the page has %d commands, not a variable and three", len(steps))
	}
	steps[len(steps)-1].Want = []string{"INSERT 0 1"}
	steps = append(steps,
		pages.Step{Terminal: "A", Input: `wirefence lock nightly -- psql -f nightly.sql; echo "status $?"`, Want: []string{"…", "status 75"}},
		pages.Step{Terminal: "A", Input: "wirefence revoke nightly", Want: []string{"…"}},
		pages.Step{Terminal: "A", Input: "wirefence lock nightly -- sh -c 'wirefence revoke nightly > revoked; psql -f nightly.sql'", Want: []string{"psql:nightly.sql:1: ERROR:  stale fencing token for resource \"nightly\"", "…"}},
		pages.Step{Terminal: "A", Input: "wirefence history nightly --kind refusal", Want: []string{"…", "… refusal nightly 3 4 … WF001, process …"}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	walk := walkIn(t, folder, map[string]string{"localhost:5432/app": db.Addr() + "/" + db.Name})
	walk.Env = append(walk.Env, "PGHOST=127.0.0.1", "PGPORT="+strconv.Itoa(db.Port), "PGUSER=app", "PGDATABASE="+db.Name)
	follow(t, ctx, walk, steps)
}
