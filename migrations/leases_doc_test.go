package migrations_test

import (
	"context"
	"os"
	osexec "os/exec"
	"strings"
	"testing"
	"time"
)

// The script in docs/leases.md does what is said there.
func TestTheDocumentedLeaseScript(t *testing.T) {
	text, err := os.ReadFile("../docs/leases.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```sql\n")
	script, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("docs/leases.md has no script")
	}
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), "CREATE TABLE public.orders (item text); GRANT INSERT ON public.orders TO issuer")
		run := func() string {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			psql := osexec.CommandContext(ctx, "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-f", "-", db.URLFor("issuer", db.name))
			psql.Stdin = strings.NewReader(script)
			out, err := psql.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return strings.TrimSpace(string(out))
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
		if n := value[int](t, db.admin(t), "SELECT count(*) FROM public.orders"); n != 2 {
			t.Errorf("%d orders", n)
		}
	})
}
