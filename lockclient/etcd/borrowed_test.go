package etcd_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

func migrated(t *testing.T) *pgx.Conn {
	t.Helper()
	server := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	conn := stack.Connect(t, server.URL("postgres"))
	if err := migrations.Apply(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

func newSession(t *testing.T) *concurrency.Session {
	t.Helper()
	session, err := concurrency.NewSession(direct(t, shared.Addr()), concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() }) // its lease may be gone already
	return session
}

// borrow acquires a lock by the API of etcd and makes a fence of its revision, as
// docs/reference/sources.md says.
func borrow(ctx context.Context, session *concurrency.Session) (fence.Fence, error) {
	mutex := concurrency.NewMutex(session, "/locks/orders")
	if err := mutex.Lock(ctx); err != nil {
		return fence.Fence{}, err
	}
	return fence.New(fence.Pair{Resource: "orders", Token: fence.Token(mutex.Header().Revision), Source: "etcd-revision"})
}

// The revision at which a lock of etcd was won is a token: a holder that lost the lock
// without noticing is refused, and so is a holder of a lock of another service.
func TestTheRevisionOfAMutexIsAToken(t *testing.T) {
	conn, client, session := migrated(t), direct(t, shared.Addr()), newSession(t)
	stale, err := borrow(t.Context(), session)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), stale.Check()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		rival := newSession(t)
		var current fence.Fence
		won := make(chan error)
		go func() {
			var err error
			current, err = borrow(t.Context(), rival)
			won <- err
		}()
		if _, err := client.Revoke(t.Context(), session.Lease()); err != nil { // as etcd does at its expiry
			t.Fatal(err)
		}
		if err := <-won; err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), current.Check()); err != nil {
			t.Error(err)
		}
		if _, err := conn.Exec(t.Context(), stale.Check()); !fence.IsStale(err) {
			t.Errorf("%v after %v: %v", stale, current, err)
		}
		session, stale = rival, current
	}
	other, err := fence.New(fence.Pair{Resource: "orders", Token: 1 << 40, Source: "redisson"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), other.Check()); !fence.IsUnknown(err) {
		t.Errorf("another service's token: %v", err)
	}
}
