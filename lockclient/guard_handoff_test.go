package lockclient_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/proxy"
)

// succeed makes another client acquire the resource; the channel gets its error.
func (g *guarded) succeed(t *testing.T) <-chan error {
	t.Helper()
	g.store.forget()
	client := g.client(t)
	acquired := make(chan error, 1)
	go func() {
		lease, err := client.Acquire(t.Context(), "orders")
		if err == nil && lease.Token() != 2 {
			err = errors.New("the successor's token is " + lease.Token().String())
		}
		acquired <- err
	}()
	return acquired
}

// awaitWaiter returns when a seal waits for the resource.
func (g *guarded) awaitWaiter(t *testing.T) {
	t.Helper()
	const waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND mode = 'ExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
	stack.Eventually(t, "a seal waits", func() (waits bool) {
		if err := g.admin.QueryRow(t.Context(), waiting).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
}

func TestAHandoffWaitsForTheEffect(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		lease := acquire(t, g.client(t))
		g.preemptAfter(t, "1 minute")
		var acquired <-chan error
		var over atomic.Bool
		err := g.guard(t.Context(), lease, within, func(context.Context) error {
			acquired = g.succeed(t)
			g.awaitWaiter(t)
			select {
			case err := <-acquired:
				t.Errorf("acquired while an effect runs: %v", err)
			default:
			}
			over.Store(true)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := <-acquired; err != nil || !over.Load() {
			t.Errorf("%v, over: %v", err, over.Load())
		}
	})
}

func TestAnEffectLearnsThatItIsPreempted(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		lease := acquire(t, g.client(t))
		g.preemptAfter(t, "50 ms")
		var acquired <-chan error
		err := g.guard(t.Context(), lease, within, func(ctx context.Context) error {
			acquired = g.succeed(t)
			<-ctx.Done()
			if left := time.Until(deadline(t, ctx)); left < 0 {
				t.Error("it was not told before its time was over")
			}
			return context.Cause(ctx)
		})
		wantOutcome(t, err, lockclient.ErrInDoubt)
		if err := <-acquired; err != nil {
			t.Error(err)
		}
		if n := strings.Count(err.Error(), "was lost"); n != 1 {
			t.Errorf("%q says %d times that the transaction was lost", err, n)
		}
		g.wantAllBack(t)
	})
}

func deadline(t *testing.T, ctx context.Context) time.Time {
	t.Helper()
	at, ok := ctx.Deadline()
	if !ok {
		t.Error("the effect has no deadline")
	}
	return at
}

// An effect that ignores its context succeeds after the handoff.
func TestAnEffectThatOutlastsItsTransactionIsInDoubt(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		lease := acquire(t, g.client(t))
		g.preemptAfter(t, "50 ms")
		err := g.guard(t.Context(), lease, within, func(context.Context) error { return <-g.succeed(t) })
		wantOutcome(t, err, lockclient.ErrInDoubt)
		if detail, _ := errors.AsType[*lockclient.EffectError](err); detail.Effect != nil || detail.Cause == nil || !strings.Contains(err.Error(), "it succeeded") {
			t.Errorf("%+v", detail)
		}
		g.wantAllBack(t)
	})
}

// The transaction decides whether the fence was held, not the lease: if the lease is
// released while the effect runs, the context of the effect ends, and no other holder had
// the resource meanwhile.
func TestALeaseThatEndsDuringTheEffect(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		lease := acquire(t, g.client(t))
		var told error
		err := g.guard(t.Context(), lease, within, func(ctx context.Context) error {
			release(t, lease)
			<-ctx.Done()
			told = context.Cause(ctx)
			return nil
		})
		if err != nil || !errors.Is(told, lockclient.ErrReleased) {
			t.Error(err, told)
		}
		g.wantAllBack(t)
	})
}

func TestAnEffectThatTakesTooLong(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		lease := acquire(t, g.client(t))
		err := g.guard(t.Context(), lease, 20*time.Millisecond, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		wantOutcome(t, err, lockclient.ErrEffectFailed, context.DeadlineExceeded)
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("shutting down")
		err = g.guard(ctx, lease, within, func(ctx context.Context) error {
			cancel(stopped)
			<-ctx.Done()
			return ctx.Err()
		})
		wantOutcome(t, err, lockclient.ErrEffectFailed, context.Canceled, stopped)
		g.wantAllBack(t)
		g.wantHolders(t, 0)
	})
}

// The defaults of a session do not weaken the check.
func TestGuardingWhereSessionsReadSnapshots(t *testing.T) {
	eachWay(t, func(t *testing.T, g *guarded) {
		stack.Exec(t, g.admin.Config().ConnString(),
			"ALTER DATABASE "+g.admin.Config().Database+" SET default_transaction_isolation = 'serializable'",
			"ALTER DATABASE "+g.admin.Config().Database+" SET default_transaction_read_only = 'on'")
		lease := acquire(t, newClient(t, g.store, lockclient.Options{TTL: time.Minute}))
		if err := g.guard(t.Context(), lease, within, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if last, err := fence.LastToken(t.Context(), g.admin, "orders"); last != 1 || err != nil {
			t.Errorf("last token %d, %v", last, err)
		}
	})
}

// A proxy in shadow mode does not keep the database from refusing.
func TestGuardingThroughAProxyThatLetsPass(t *testing.T) {
	_, admin := startPostgres(t)
	for _, mode := range []proxy.Mode{proxy.Shadow, proxy.Off} {
		g := &guarded{store: newMemory(), admin: admin}
		g.url = stack.URL(stack.Proxy(t, suite.Server(t, 0), proxy.Options{Mode: mode}), admin.Config().Database)
		g.usePgx(t)
		client := g.client(t)
		lease := acquire(t, client)
		g.store.forget()
		successor := acquire(t, g.client(t))
		err := g.guard(t.Context(), lease, within, unexpected(t))
		if !errors.Is(err, lockclient.ErrNotBegun) || !fence.IsStale(err) {
			t.Errorf("%v: %v", mode, err)
		}
		if err := g.guard(t.Context(), successor, within, func(context.Context) error { return nil }); err != nil {
			t.Errorf("%v: %v", mode, err)
		}
	}
}

// Watching a connection does not change it, with TLS as well; and when the server fails,
// the lock is released.
func TestAServerThatFailsDuringTheEffect(t *testing.T) {
	ctx := t.Context()
	certificate := authority.New(t).Issue(t, "localhost")
	server := stack.Started(servers.StartPostgres(ctx, servers.PostgresConfig{CertFile: certificate.CertFile, KeyFile: certificate.KeyFile})).EndWith(t)
	admin := stack.Connect(t, server.URL("postgres"))
	migrate(t, admin)
	lease := acquire(t, newClient(t, newMemory(), lockclient.Options{TTL: time.Minute, Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: admin}}}))
	pool := stack.Started(pgxpool.New(ctx, strings.Replace(server.URL("postgres"), "sslmode=disable", "sslmode=require", 1))).EndWith(t)
	for range 3 {
		if err := lease.Guard(ctx, pool, within, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	}
	if made := pool.Stat().NewConnsCount(); made != 1 {
		t.Errorf("it took %d connections, one after the other", made)
	}
	err := lease.Guard(ctx, pool, within, func(ctx context.Context) error {
		server.Kill()
		<-ctx.Done()
		return context.Cause(ctx)
	})
	wantOutcome(t, err, lockclient.ErrInDoubt)
	err = lease.Guard(ctx, pool, within, unexpected(t))
	wantOutcome(t, err, lockclient.ErrNotBegun)
}

// A network that drops all packets reports nothing: the effect learns of it all the same, long
// before its own time is over.
func TestANetworkThatFailsDuringTheEffect(t *testing.T) {
	for way, use := range map[string]func(*guarded, *testing.T){
		"pgx": (*guarded).usePgx, "lib/pq": func(g *guarded, t *testing.T) { g.useSQL(t, "postgres") },
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, "pgx")
			server := suite.Server(t, 0)
			network := stack.Started(servers.StartLink(server.Addr())).EndWith(t)
			g.url = strings.Replace(g.url, server.Addr(), network.Addr(), 1)
			use(g, t)
			err := g.guard(t.Context(), acquire(t, g.client(t)), within, func(ctx context.Context) error {
				network.Hold()
				<-ctx.Done()
				return context.Cause(ctx)
			})
			wantOutcome(t, err, lockclient.ErrInDoubt)
			if own := (*lockclient.EffectError)(nil); errors.As(err, &own) && own.Effect == context.DeadlineExceeded {
				t.Errorf("it learned of it when its time was over: %v", err)
			}
			network.Restore()
		})
	}
}
