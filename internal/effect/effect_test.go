package effect_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/effect"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

var suite = stack.Suite{Objects: "CREATE ROLE app LOGIN", Check: func() error { return goleak.Find() }}

func TestMain(m *testing.M) { os.Exit(suite.Run(m)) }

// world is a database in which token 34 of orders is current, with a pool of a role without
// rights.
type world struct {
	*stack.DB
	pool *pgxpool.Pool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := suite.Database(t, 0)
	db.Seal(t, "orders", 34)
	pool := stack.Started(pgxpool.New(t.Context(), db.URLFor("app", db.Name))).EndWith(t)
	return &world{db, pool}
}

func (w *world) begin(t *testing.T) *effect.Guard {
	t.Helper()
	g, err := effect.Begin(t.Context(), w.pool, parse(t, "orders=34"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.End() })
	return g
}

func parse(t *testing.T, text string) fence.Fence {
	t.Helper()
	f, err := fence.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAGuardThatIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 3 {
		g := w.begin(t)
		if err := g.Context().Err(); err != nil {
			t.Error(err)
		}
		if first, second := g.End(), g.End(); first != nil || second != nil {
			t.Error(first, second)
		}
		if !errors.Is(context.Cause(g.Context()), context.Canceled) {
			t.Error(context.Cause(g.Context()))
		}
	}
	if made := w.pool.Stat().NewConnsCount(); made != 1 {
		t.Errorf("it took %d connections, one after the other", made)
	}
	var timeout string
	if err := w.pool.QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&timeout); err != nil || timeout != "0" {
		t.Errorf("the session keeps the bound %q, %v", timeout, err)
	}
}

func TestAGuardThatIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.begin(t)
	w.Exec(t, "SELECT wirefence.revoke('orders')")
	select {
	case <-g.Context().Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the loss was not noticed")
	}
	if cause, ended := context.Cause(g.Context()), g.End(); !errors.Is(cause, effect.ErrLost) || !errors.Is(ended, effect.ErrLost) || stack.State(ended) != "57P01" {
		t.Error(cause, ended)
	}
	stack.Eventually(t, "the connection is given back", func() bool { return w.pool.Stat().AcquiredConns() == 0 })
	if _, err := effect.Begin(t.Context(), w.pool, parse(t, "orders=34")); !fence.IsStale(err) {
		t.Error(err)
	}
}

func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for text, refused := range map[string]func(error) bool{
		"orders=33": fence.IsStale, "orders=35": fence.IsUnknown,
		"orders=34": func(err error) bool { return err == nil },
	} {
		if err := effect.Once(t.Context(), w.pool, parse(t, text)); !refused(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if n := w.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

// A check records the token of a resource that advances on use, and the use of a token that
// counts once.
func TestACheckCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := effect.Once(t.Context(), w.pool, parse(t, "parts=7")); err != nil {
		t.Fatal(err)
	}
	if err := effect.Once(t.Context(), w.pool, parse(t, "parts=6")); !fence.IsStale(err) {
		t.Error(err)
	}
	w.Exec(t, "UPDATE wirefence.resource_locks SET reuse = 'once' WHERE resource_id = 'parts'")
	g, err := effect.Begin(t.Context(), w.pool, parse(t, "parts=8"))
	if err == nil {
		err = g.End()
	}
	if err != nil {
		t.Error(err)
	}
	if err := effect.Once(t.Context(), w.pool, parse(t, "parts=8")); !fence.IsReused(err) {
		t.Error(err)
	}
}

// A check is recorded also through a proxy in which unfenced sessions are read-only.
func TestACheckCountsThroughAProxyThatRejects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	front := stack.Proxy(t, w.Postgres, proxy.Options{UnfencedWrites: proxy.Reject})
	pool := stack.Started(pgxpool.New(t.Context(), strings.Replace(stack.URL(front, w.Name), "postgres@", "app@", 1))).EndWith(t)
	w.Exec(t, "SELECT wirefence.seal('parts', 7, 'a')", "UPDATE wirefence.resource_locks SET reuse = 'once' WHERE resource_id = 'parts'")
	for _, c := range []struct {
		text    string
		refused func(error) bool
	}{
		{"tools=7", nil}, {"tools=6", fence.IsStale}, {"parts=7", nil}, {"parts=7", fence.IsReused}, {"orders=34", nil}, {"orders=33", fence.IsStale},
	} {
		g, err := effect.Begin(t.Context(), pool, parse(t, c.text))
		if err == nil {
			err = g.End()
		}
		if c.refused == nil && err != nil || c.refused != nil && !c.refused(err) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
}

// A standby may not know of the last grant.
func TestAStandbyChecksNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby, err := suite.Server(t, 0).StartStandby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Close)
	conn := stack.Connect(t, standby.URL(w.Name))
	if err := effect.Once(t.Context(), conn, parse(t, "orders=34")); err == nil || !strings.Contains(err.Error(), "recovery") {
		t.Error(err)
	}
}
