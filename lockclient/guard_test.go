package lockclient_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/proxy"
)

// guarded is a resource in PostgreSQL, a store that can lose its leases, and one way to
// guard effects.
type guarded struct {
	store *memory
	admin *pgx.Conn
	url   string // of a role without rights
	guard func(ctx context.Context, lease *lockclient.Lease, within time.Duration, effect func(context.Context) error) error
	// take takes a connection of the pool, which has as many as connections says.
	take func(ctx context.Context) (giveBack func(), err error)
}

const connections = 4

// eachWay runs a test with every way to guard.
func eachWay(t *testing.T, run func(*testing.T, *guarded)) {
	for _, way := range []string{"pgx", "database/sql on pgx", "database/sql on lib/pq", "pgx through the proxy"} {
		t.Run(way, func(t *testing.T) { run(t, newGuarded(t, way)) })
	}
}

func newGuarded(t *testing.T, way string) *guarded {
	t.Helper()
	url, admin := startPostgres(t)
	name := admin.Config().Database
	stack.Exec(t, url, "CREATE ROLE app_"+name+" LOGIN")
	g := &guarded{store: newMemory(), admin: admin, url: suite.Server(t, 0).URLFor("app_"+name, name)}
	switch way {
	case "database/sql on pgx":
		g.useSQL(t, "pgx")
	case "database/sql on lib/pq":
		g.useSQL(t, "postgres")
	case "pgx through the proxy":
		front := stack.Proxy(t, suite.Server(t, 0), proxy.Options{})
		g.url = "postgres://app_" + name + "@" + front + "/" + name + "?sslmode=disable"
		g.usePgx(t)
	default:
		g.usePgx(t)
	}
	return g
}

func (g *guarded) usePgx(t *testing.T) {
	cfg, err := pgxpool.ParseConfig(g.url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = connections
	pool := stack.Started(pgxpool.NewWithConfig(t.Context(), cfg)).EndWith(t)
	g.take = func(ctx context.Context) (func(), error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		return conn.Release, nil
	}
	g.guard = func(ctx context.Context, lease *lockclient.Lease, within time.Duration, effect func(context.Context) error) error {
		return lease.Guard(ctx, pool, within, effect)
	}
}

func (g *guarded) useSQL(t *testing.T, driver string) {
	db, err := sql.Open(driver, g.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(connections)
	g.take = func(ctx context.Context) (func(), error) {
		conn, err := db.Conn(ctx)
		return func() { _ = conn.Close() }, err
	}
	g.guard = func(ctx context.Context, lease *lockclient.Lease, within time.Duration, effect func(context.Context) error) error {
		return lease.GuardSQL(ctx, db, within, effect)
	}
}

// client seals on a connection of its own. Its leases are long enough for a slow machine.
func (g *guarded) client(t *testing.T) *lockclient.Client {
	t.Helper()
	sealer := lockclient.PostgresSealer{Querier: stack.Connect(t, g.admin.Config().ConnString())}
	return newClient(t, g.store, lockclient.Options{TTL: time.Minute, Sealers: []lockclient.Sealer{sealer}})
}

// preemptAfter sets how long a successor waits.
func (g *guarded) preemptAfter(t *testing.T, interval string) {
	t.Helper()
	stack.MustExec(t, g.admin, "UPDATE wirefence.resource_locks SET preempt_after = $1::text::interval WHERE resource_id = 'orders'", interval)
}

// wantAllBack waits until every connection of the pool can be taken.
func (g *guarded) wantAllBack(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range connections {
		giveBack, err := g.take(ctx)
		if err != nil {
			t.Fatalf("a connection was not given back: %v", err)
		}
		defer giveBack()
	}
}

// wantOutcome requires exactly one of the outcomes, and the other errors in the chain.
func wantOutcome(t *testing.T, err, outcome error, chain ...error) {
	t.Helper()
	for _, each := range []error{lockclient.ErrNotBegun, lockclient.ErrEffectFailed, lockclient.ErrInDoubt} {
		if got := errors.Is(err, each); got != (each == outcome) {
			t.Errorf("%v: is %q: %v", err, each, got)
		}
	}
	for _, each := range chain {
		if !errors.Is(err, each) {
			t.Errorf("%v: is not %q", err, each)
		}
	}
	if detail, ok := errors.AsType[*lockclient.EffectError](err); !ok || detail.Resource != "orders" || detail.Token != 1 {
		t.Errorf("%v: %+v", err, detail)
	}
}

func unexpected(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		t.Error("the effect was begun")
		return nil
	}
}

const within = 20 * time.Second

func TestGuardedEffects(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		lease := acquire(t, g.client(t))
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, "value")
		for range 2 {
			done := false
			err := g.guard(ctx, lease, within, func(ctx context.Context) error {
				deadline, ok := ctx.Deadline()
				if left := time.Until(deadline); !ok || left > within || ctx.Value(key{}) != "value" || ctx.Err() != nil {
					t.Errorf("%v left, %v, %v", left, ctx.Value(key{}), ctx.Err())
				}
				done = true
				return nil
			})
			if err != nil || !done {
				t.Fatal(err, done)
			}
		}
		own := errors.New("the store is full")
		err := g.guard(ctx, lease, within, func(context.Context) error { return own })
		wantOutcome(t, err, lockclient.ErrEffectFailed, own)
		if want := `effect failed: "orders", token 1: the store is full`; err.Error() != want {
			t.Errorf("says %q, want %q", err, want)
		}
		g.wantAllBack(t)
	})
}

// Two effects of one lease run at once: each waits for the other to have begun.
func TestEffectsOfOneLeaseRunAtOnce(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		lease := acquire(t, g.client(t))
		var begun, all sync.WaitGroup
		begun.Add(2)
		for range 2 {
			all.Go(func() {
				err := g.guard(t.Context(), lease, within, func(ctx context.Context) error {
					begun.Done()
					begun.Wait()
					return ctx.Err()
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

func TestAPanicOfTheEffectPassesThrough(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		lease := acquire(t, g.client(t))
		func() {
			defer func() {
				if said := recover(); said != "no more paper" {
					t.Errorf("panics with %v", said)
				}
			}()
			_ = g.guard(t.Context(), lease, within, func(context.Context) error { panic("no more paper") })
		}()
		g.wantAllBack(t)
		g.wantHolders(t, 0)
	})
}

// wantHolders requires this number of transactions that hold the resource.
func (g *guarded) wantHolders(t *testing.T, want int) {
	t.Helper()
	status, _, err := fence.StatusOf(t.Context(), g.admin, "orders")
	if err != nil || status.Writers != want {
		t.Errorf("held by %d transactions, want %d: %v", status.Writers, want, err)
	}
}

func TestEffectsThatAreNotBegun(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		client := g.client(t)
		lease := acquire(t, client)
		err := g.guard(t.Context(), lease, time.Minute, unexpected(t))
		wantOutcome(t, err, lockclient.ErrNotBegun)
		err = g.guard(t.Context(), lease, 0, unexpected(t))
		wantOutcome(t, err, lockclient.ErrNotBegun)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = g.guard(ctx, lease, within, unexpected(t))
		wantOutcome(t, err, lockclient.ErrNotBegun, context.Canceled)

		g.store.forget() // and so the resource is free
		successor := g.client(t)
		acquire(t, successor)
		err = g.guard(t.Context(), lease, within, unexpected(t))
		wantOutcome(t, err, lockclient.ErrNotBegun)
		if !fence.IsStale(err) {
			t.Error(err)
		}
		release(t, lease)
		err = g.guard(t.Context(), lease, within, unexpected(t))
		wantOutcome(t, err, lockclient.ErrNotBegun, lockclient.ErrReleased)
		g.wantAllBack(t)
		g.wantHolders(t, 0)
	})
}

// The record of a check stays even if the effect fails: the effect may have had
// consequences.
func TestAFailedEffectLeavesItsTokenRecorded(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		lease := acquire(t, newClient(t, g.store, lockclient.Options{TTL: time.Minute}))
		err := g.guard(t.Context(), lease, within, func(context.Context) error { return errDown })
		wantOutcome(t, err, lockclient.ErrEffectFailed, errDown)
		if last, err := fence.LastToken(t.Context(), g.admin, "orders"); last != 1 || err != nil {
			t.Errorf("last token %d, %v", last, err)
		}
	})
}
