package lockclient_test

import (
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
	"github.com/wirefence/wirefence/lockclient/storetest"
	"github.com/wirefence/wirefence/migrations"
)

func startRedis(t testing.TB) *servers.Redis {
	t.Helper()
	return stack.Started(servers.StartRedis(t.Context())).EndWith(t)
}

func redisStore(t testing.TB, server *servers.Redis) *redis.Store {
	t.Helper()
	return storetest.Open(t, redis.Open, server.URL())
}

var suite = stack.Suite{Parallel: 4, Check: func() error { return goleak.Find() }}

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

// Evidence: I3
func TestRacersThroughAForgetfulRedisShareNoToken(t *testing.T) {
	ctx := t.Context()
	server := startRedis(t)
	database, _ := startPostgres(t)
	admin := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer admin.Close()
	var mu sync.Mutex
	seen := map[fence.Token]bool{}
	var all sync.WaitGroup
	for range 6 {
		sealer := lockclient.PostgresSealer{Querier: stack.Connect(t, database)}
		client := newClient(t, redisStore(t, server), lockclient.Options{Sealers: []lockclient.Sealer{sealer}, RetryMin: time.Millisecond})
		all.Go(func() {
			for range 10 {
				lease, err := client.Acquire(ctx, "orders")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if seen[lease.Token()] {
					t.Errorf("token %d twice", lease.Token())
				}
				seen[lease.Token()] = true
				if len(seen)%7 == 0 {
					if err := admin.FlushAll(ctx).Err(); err != nil {
						t.Error(err)
					}
				}
				mu.Unlock()
				if err := lease.Release(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if len(seen) != 60 {
		t.Errorf("%d tokens for 60 grants", len(seen))
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
