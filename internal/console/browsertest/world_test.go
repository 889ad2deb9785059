package browsertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// Tokens of the file that the proxy reads.
const (
	operator = "operators-own-token-0123456789abcdef"
	viewer   = "viewers-own-token-0123456789abcdef0"
)

// world is a proxy with its admin listener, a database, and a browser.
type world struct {
	pg    *servers.Postgres
	db    *pgx.Conn
	proxy *servers.Wirefence
}

func start(t *testing.T, settings ...string) *world {
	t.Helper()
	w := &world{pg: stack.Postgres(t, 15)}
	w.db = stack.Connect(t, w.pg.URL("postgres"))
	err := migrations.Apply(t.Context(), w.db, nil)
	binary, tokens := filepath.Join(t.TempDir(), "wirefence"), filepath.Join(t.TempDir(), "tokens")
	err = errors.Join(err, servers.BuildWirefence(t.Context(), "../../..", binary),
		os.WriteFile(tokens, fmt.Appendf(nil, "olga operate %s\nvic read %s\n", operator, viewer), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	w.proxy, err = servers.StartWirefence(t.Context(), binary, append([]string{"WIREFENCE_UPSTREAM=postgres://" + w.pg.Addr() + "/?sslmode=disable",
		"WIREFENCE_DATABASE_URL=" + w.pg.URL("postgres"), "WIREFENCE_ADMIN_TOKEN_FILE=" + tokens}, settings...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.stop(t)
		w.proxy.Close()
	})
	return w
}

func (w *world) serve(t *testing.T) {
	t.Helper()
	if err := w.proxy.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (w *world) stop(t *testing.T) {
	t.Helper()
	if err := w.proxy.Drain(); err != nil {
		t.Error(err)
	}
}

// acquire grants a resource in PostgreSQL to a holder, as any client in SQL does, and
// releases what another holder has of it.
func (w *world) acquire(t *testing.T, resource, holder string, ttl time.Duration) {
	t.Helper()
	var granted bool
	err := w.db.QueryRow(t.Context(), "SELECT token IS NOT NULL FROM wirefence.acquire($1, $2, make_interval(secs => $3))", resource, holder, ttl.Seconds()).Scan(&granted)
	if err != nil || !granted {
		t.Fatalf("%s isn't granted to %s: %v", resource, holder, err)
	}
}
