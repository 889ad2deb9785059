package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
	"github.com/wirefence/wirefence/migrations"
)

func startRedis(t testing.TB) *servers.Redis {
	t.Helper()
	return stack.Started(servers.StartRedis(t.Context())).EndWith(t)
}

func redisStore(t testing.TB, server *servers.Redis) *redis.Store {
	t.Helper()
	store, err := redis.Open(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

var suite = stack.Suite{Check: func() error { return goleak.Find() }}

// startPostgres creates a database with the schema, and returns its connection string and
// a connection.
func startPostgres(t testing.TB) (url string, conn *pgx.Conn) {
	t.Helper()
	db := suite.Database(t, 0)
	return db.URL(db.Name), db.Admin
}

func migrate(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	if err := migrations.Apply(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
}

func release(t testing.TB, lease *lockclient.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Evidence: I3
func TestRedisThatForgetsIssuesNoTokenTwice(t *testing.T) {
	ctx := t.Context()
	server := startRedis(t)
	_, conn := startPostgres(t)
	client := newClient(t, redisStore(t, server), lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: conn}}})
	admin := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer admin.Close()
	var last fence.Token
	next := func() {
		t.Helper()
		for range 3 {
			lease := acquire(t, client)
			if lease.Token() <= last {
				t.Errorf("token %d after %d", lease.Token(), last)
			}
			last = lease.Token()
			release(t, lease)
		}
	}
	next()
	if err := admin.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	next()
	server.Kill()
	if err := server.Start(ctx); err != nil {
		t.Fatal(err)
	}
	next()
	if _, err := fence.Revoke(ctx, conn, "orders"); err != nil {
		t.Fatal(err)
	}
	next()
	if sealed, err := fence.LastToken(ctx, conn, "orders"); err != nil || sealed != last {
		t.Errorf("sealed %d, issued %d: %v", sealed, last, err)
	}
}

// A resource has one store. A client can win its lease in another store, but not seal it,
// and without a seal its token is refused.
//
// Evidence: lock-services-arent-mixed
func TestAnotherStoreIsNoGrant(t *testing.T) {
	_, conn := startPostgres(t)
	one := newClient(t, newMemory(), lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: conn, Source: "etcd"}}})
	lease := acquire(t, one)
	if _, err := conn.Exec(t.Context(), lease.Fence().Check()); err != nil {
		t.Error(err)
	}
	store := newMemory()
	two := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: conn, Source: "redis"}}})
	refused, err := two.Acquire(t.Context(), "orders")
	if _, ok := errors.AsType[*lockclient.SealError](err); refused != nil || !ok || !fence.IsUnknown(err) || !strings.Contains(err.Error(), `it comes from "redis", not from "etcd"`) {
		t.Error(refused, err)
	}
	if holder := store.holder("orders"); holder != "" {
		t.Errorf("held by %q", holder)
	}
	unsealed := acquire(t, newClient(t, store, lockclient.Options{Source: "redis"}))
	if text := unsealed.Fence().String(); text != fmt.Sprintf("orders=%v@redis", unsealed.Token()) {
		t.Errorf("its fence is %s", text)
	}
	if _, err := conn.Exec(t.Context(), unsealed.Fence().Check()); !fence.IsUnknown(err) {
		t.Error(err)
	}
}

func TestAZombieIsRefusedAfterTheHandoff(t *testing.T) {
	ctx := t.Context()
	_, conn := startPostgres(t)
	client := newClient(t, redisStore(t, startRedis(t)), lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: conn}}})
	zombie := acquire(t, client)
	if _, err := conn.Exec(ctx, zombie.Fence().Check()); err != nil {
		t.Fatal(err)
	}
	release(t, zombie)
	lease := acquire(t, client)
	if _, err := conn.Exec(ctx, zombie.Fence().Check()); !fence.IsStale(err) {
		t.Errorf("the zombie's check: %v", err)
	}
	if _, err := conn.Exec(ctx, lease.Fence().Check()); err != nil {
		t.Error(err)
	}
}

func TestUnreachablePostgresIsNoGrant(t *testing.T) {
	ctx := t.Context()
	server := stack.Started(servers.StartPostgres(ctx, servers.PostgresConfig{})).EndWith(t)
	conn := stack.Connect(t, server.URL("postgres"))
	migrate(t, conn)
	store := redisStore(t, startRedis(t))
	client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: conn}}})
	server.Kill()
	lease, err := client.Acquire(ctx, "orders")
	seal, ok := errors.AsType[*lockclient.SealError](err)
	if lease != nil || !ok || seal.Resource != "orders" {
		t.Fatal(lease, err)
	}
	if !strings.Contains(err.Error(), server.Addr()) || !strings.Contains(err.Error(), "PostgreSQL") {
		t.Errorf("%q does not name the server", err)
	}
	attempt, err := store.Acquire(ctx, "orders", "next", time.Minute)
	if err != nil || !attempt.Won() {
		t.Errorf("the lease was not given back: %+v, %v", attempt, err)
	}
}

func TestRedisDown(t *testing.T) {
	server := startRedis(t)
	client := newClient(t, redisStore(t, server), lockclient.Options{})
	server.Kill()
	lease, err := client.Acquire(t.Context(), "orders")
	if lease != nil || err == nil || errors.Is(err, lockclient.ErrNotAcquired) || !strings.Contains(err.Error(), "redis at "+server.Addr()) {
		t.Error(lease, err)
	}
}

func TestAPausedRedisEndsTheLeaseInTime(t *testing.T) {
	const ttl, margin = 600 * time.Millisecond, 200 * time.Millisecond
	server := startRedis(t)
	client := newClient(t, redisStore(t, server), lockclient.Options{TTL: ttl, Margin: margin})
	before := time.Now()
	lease := acquire(t, client)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, lease, lockclient.ErrUnreachable)
	if held := time.Since(before); held >= ttl || lease.Remaining() == 0 {
		t.Errorf("ended after %v, Redis may free it after %v", held, ttl)
	}
	if !strings.Contains(lease.Err().Error(), server.Addr()) {
		t.Errorf("%v does not name the server", lease.Err())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Acquire(ctx, "orders"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire from a paused server: %v", err)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	successor := acquire(t, client)
	if successor.Token() <= lease.Token() {
		t.Errorf("token %d after %d", successor.Token(), lease.Token())
	}
	release(t, lease)
	if successor.Err() != nil {
		t.Error(successor.Err())
	}
}

func TestADeletedKeyIsALostLease(t *testing.T) {
	server := startRedis(t)
	admin := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer admin.Close()
	client := newClient(t, redisStore(t, server), lockclient.Options{TTL: 3 * time.Second, RenewEvery: 50 * time.Millisecond})
	lease := acquire(t, client)
	if n := admin.Del(t.Context(), redis.LeaseKey("orders")).Val(); n != 1 {
		t.Fatalf("%d keys deleted", n)
	}
	if took := wantEnd(t, lease, lockclient.ErrLost); took > 2*time.Second {
		t.Errorf("noticed after %v", took)
	}
}

func TestWaitersOnRedisAreWoken(t *testing.T) {
	server := startRedis(t)
	const waiters = 25
	opts := lockclient.Options{TTL: time.Minute, RetryMin: 30 * time.Second, RetryMax: 30 * time.Second}
	client := newClient(t, redisStore(t, server), opts)
	lease := acquire(t, client)
	var mu sync.Mutex
	last := lease.Token()
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() {
			lease, err := client.Acquire(t.Context(), "orders")
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			if lease.Token() <= last {
				t.Errorf("token %d after %d", lease.Token(), last)
			}
			last = lease.Token()
			mu.Unlock()
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	start := time.Now()
	release(t, lease)
	all.Wait()
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("%d handoffs took %v: the notices don't arrive", waiters, took)
	}
}
