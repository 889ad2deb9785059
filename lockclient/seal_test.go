package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/postgres"
)

// ledger is a Sealer in this process.
type ledger struct {
	mu     sync.Mutex
	last   map[fence.Resource]fence.Token
	seals  int
	before func(ctx context.Context) error
}

func (l *ledger) Seal(ctx context.Context, resource fence.Resource, token fence.Token, _ string) (bool, error) {
	if l.before != nil {
		if err := l.before(ctx); err != nil {
			return false, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seals++
	if token <= l.last[resource] {
		return false, nil
	}
	if l.last == nil {
		l.last = map[fence.Resource]fence.Token{}
	}
	l.last[resource] = token
	return true, nil
}

func (l *ledger) LastToken(_ context.Context, resource fence.Resource) (fence.Token, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[resource], nil
}

func TestAFailedSealIsNoGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &ledger{}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		sealer.before = func(context.Context) error { return errDown }
		lease, err := client.Acquire(t.Context(), "orders")
		seal, ok := errors.AsType[*lockclient.SealError](err)
		if lease != nil || !ok || seal.Token != 1 || !errors.Is(err, errDown) {
			t.Fatal(lease, err)
		}
		if store.holder("orders") != "" {
			t.Errorf("held by %q", store.holder("orders"))
		}
	})
}

func TestSealTimeCountsAgainstTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &ledger{}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		delay := ttl - margin - time.Second
		sealer.before = func(context.Context) error {
			<-time.After(delay) // heeds no context
			return nil
		}
		store.script(failing("renew", errDown), nil)
		lease := acquire(t, client)
		if left := wantEnd(t, lease, lockclient.ErrUnreachable); left != time.Second {
			t.Errorf("the lease had %v left", left)
		}
		_ = lease.Release(t.Context())
		store.script(nil, nil)
		delay = ttl - margin
		lease, err := client.Acquire(t.Context(), "orders")
		if lease != nil || !errors.Is(err, lockclient.ErrExpired) {
			t.Error(lease, err)
		}
		if store.holder("orders") != "" {
			t.Errorf("held by %q", store.holder("orders"))
		}
	})
}

func TestAnEndedContextEndsTheSeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &ledger{}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		sealer.before = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if lease, err := client.Acquire(ctx, "orders"); lease != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(lease, err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
		synctest.Wait()
		if store.holder("orders") != "" {
			t.Errorf("held by %q", store.holder("orders"))
		}
		if lease, err := client.Acquire(t.Context(), "orders"); lease != nil || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Error("the client's own patience passes for the caller's:", lease, err)
		}
	})
}

func TestAStoreThatCantBeRaised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &ledger{last: map[fence.Resource]fence.Token{"orders": 7}}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		store.script(failing("raise", errDown), nil)
		if lease, err := client.Acquire(t.Context(), "orders"); lease != nil || !errors.Is(err, errDown) {
			t.Error(lease, err)
		}
		store.script(nil, nil)
		if lease := acquire(t, client); lease.Token() != 8 {
			t.Errorf("token %d", lease.Token())
		}
	})
}

// A grant waits for a synchronous standby, whatever synchronous_commit its role has. If
// that wait is cancelled, PostgreSQL commits, and the seal is nevertheless not a grant.
func TestAGrantThatNoStandbyConfirms(t *testing.T) {
	ctx := t.Context()
	primary := stack.Started(servers.StartPostgres(ctx, servers.PostgresConfig{Settings: map[string]string{"synchronous_commit": "on"}})).EndWith(t)
	admin := stack.Connect(t, primary.URL("postgres"))
	migrate(t, admin)
	standby := stack.Started(primary.StartStandby(ctx)).EndWith(t)
	stack.Exec(t, primary.URL("postgres"), "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
	pools := map[string]*pgxpool.Pool{}
	for _, mode := range []string{"off", "local", "remote_write"} {
		for _, told := range []string{"warning", "error"} {
			role := "issuer_" + mode + "_" + told
			stack.Exec(t, primary.URL("postgres"), fmt.Sprintf(
				"CREATE ROLE %s LOGIN IN ROLE wirefence_issuer; ALTER ROLE %[1]s SET synchronous_commit = %[2]s; ALTER ROLE %[1]s SET client_min_messages = %[3]s",
				role, mode, told))
			pool := stack.Started(pgxpool.New(ctx, primary.URLFor(role, "postgres"))).EndWith(t)
			pools[role] = pool
			if sealed, err := fence.Seal(ctx, pool, fence.Grant{Resource: fence.Resource(role), Token: 1}); err != nil || !sealed {
				t.Fatalf("with a standby that follows: %v, %v", sealed, err)
			}
		}
	}
	if err := standby.FallBehind(ctx, primary); err != nil {
		t.Fatal(err)
	}
	for role, pool := range pools {
		for name, grant := range map[string]func() error{
			"a seal": func() error {
				_, err := fence.Seal(ctx, pool, fence.Grant{Resource: fence.Resource(role), Token: 2})
				return err
			},
			"an acquire": func() error {
				_, err := postgres.New(pool).Acquire(ctx, fence.Resource(role+" acquired"), "me", time.Minute)
				return err
			},
		} {
			done := make(chan error, 1)
			go func() { done <- grant() }()
			cancelSyncWait(t, admin, role)
			if err := <-done; !errors.Is(err, fence.ErrNotReplicated) {
				t.Errorf("%s by %s whose wait was cancelled: %v", name, role, err)
			}
			if err := pool.Ping(ctx); err != nil {
				t.Errorf("behind %s by %s: %v", name, role, err)
			}
		}
	}
}

// cancelSyncWait waits until a backend of a role waits for the standby, and cancels its
// query.
func cancelSyncWait(t *testing.T, admin *pgx.Conn, role string) {
	t.Helper()
	stack.Eventually(t, role+" waits for the standby", func() (cancelled bool) {
		err := admin.QueryRow(context.Background(), "SELECT count(pg_cancel_backend(pid)) > 0 FROM pg_stat_activity WHERE usename = $1 AND wait_event = 'SyncRep'", role).Scan(&cancelled)
		if err != nil {
			t.Fatal(err)
		}
		return cancelled
	})
}
