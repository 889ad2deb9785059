package migrations_test

import (
	"context"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/pages"
)

// documentedScript returns the first SQL text of a page.
func documentedScript(t *testing.T, page string) string {
	t.Helper()
	script, err := pages.First("../docs/reference/"+page, "", "sql")
	if err != nil {
		t.Fatal(err)
	}
	return script
}

// psql runs a script and returns its output.
func (db database) psql(t *testing.T, role, script string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := osexec.CommandContext(ctx, "psql", append(args, "-XAtq", "-f", "-", db.URLFor(role, db.name))...)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// The script in docs/reference/sources.md is refused where the page says so, and nowhere else.
func TestTheDocumentedSources(t *testing.T) {
	script := documentedScript(t, "sources.md")
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), "CREATE TABLE public.orders (item text); GRANT INSERT ON public.orders TO app")
		out, err := db.psql(t, "app", script)
		if err != nil {
			t.Fatal(err)
		}
		stale, foreign, _ := strings.Cut(out, "ERROR:  unknown fencing token")
		if strings.Count(stale, "ERROR: ") != 1 || !strings.Contains(stale, "ERROR:  stale fencing token") ||
			!strings.Contains(foreign, `it comes from "redisson", not from "etcd-revision"`) {
			t.Errorf("the script says %s", out)
		}
		if n := look[int](t, db, "SELECT count(*) FROM public.orders"); n != 1 {
			t.Errorf("%d orders", n)
		}
	})
}

// The script in docs/reference/leases.md does what the page says.
func TestTheDocumentedLeaseScript(t *testing.T) {
	script := documentedScript(t, "leases.md")
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), "CREATE TABLE public.orders (item text); GRANT INSERT ON public.orders TO issuer")
		run := func() string {
			t.Helper()
			out, err := db.psql(t, "issuer", script)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return out
		}
		for range 2 {
			if out := run(); out != "t\nt" {
				t.Errorf("the script says %q", out)
			}
		}
		win(t, db.as(t, "issuer"), "orders", "worker-b", time.Minute)
		if out := run(); out != "orders is held by worker-b" {
			t.Errorf("beside a holder the script says %q", out)
		}
		if n := look[int](t, db, "SELECT count(*) FROM public.orders"); n != 2 {
			t.Errorf("%d orders", n)
		}
		// The error says what to do, and the script prints nothing after it.
		if out, err := db.psql(t, "app", script); err == nil || !strings.Contains(out, "GRANT wirefence_issuer TO app") || strings.Contains(out, "is held by") {
			t.Errorf("without the right the script says %q, %v", out, err)
		}
	})
}
