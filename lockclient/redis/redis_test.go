package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
	"github.com/wirefence/wirefence/lockclient/storetest"
)

// shared is the server of the tests that do not harm it. So are sentinel and cluster,
// once a test has started them.
var (
	shared   *servers.Redis
	sentinel onDemand[*servers.RedisSentinel]
	cluster  onDemand[*servers.RedisCluster]
)

type onDemand[S interface{ Close() }] struct {
	once   sync.Once
	server S
	err    error
}

func (o *onDemand[S]) get(t testing.TB, start func(ctx context.Context, args ...string) (S, error)) S {
	t.Helper()
	o.once.Do(func() { o.server, o.err = start(context.Background()) })
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.server
}

func theSentinel(t testing.TB) *servers.RedisSentinel {
	t.Helper()
	return sentinel.get(t, servers.StartRedisSentinel)
}

func theCluster(t testing.TB) *servers.RedisCluster {
	t.Helper()
	return cluster.get(t, servers.StartRedisCluster)
}

func TestMain(m *testing.M) {
	os.Exit(storetest.Main(m, func(ctx context.Context) (err error) {
		shared, err = servers.StartRedis(ctx)
		return err
	}, func() {
		shared.Close()
		if sentinel.server != nil {
			sentinel.server.Close()
		}
		if cluster.server != nil {
			cluster.server.Close()
		}
	}, leaks))
}

// leaks gives go-redis a second: it sleeps that long before it reconnects to a dead
// server, even after Close.
func leaks() (err error) {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return err
}

func open(t testing.TB, server interface{ URL() string }) *redis.Store {
	return storetest.Open(t, redis.Open, server.URL())
}

func ownServer(t testing.TB, args ...string) *servers.Redis {
	return storetest.Start(t, servers.StartRedis, args...)
}

// everyKind are the shared servers.
var everyKind = map[string]func(t testing.TB) interface{ URL() string }{
	"single":   func(testing.TB) interface{ URL() string } { return shared },
	"Sentinel": func(t testing.TB) interface{ URL() string } { return theSentinel(t) },
	"Cluster":  func(t testing.TB) interface{ URL() string } { return theCluster(t) },
}

func direct(t testing.TB, server *servers.Redis) *goredis.Client {
	t.Helper()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestConformance(t *testing.T) {
	for name, server := range everyKind {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB) lockclient.Store { return open(t, server(t)) })
		})
	}
}

func TestKeys(t *testing.T) {
	ctx, client, store := t.Context(), direct(t, shared), open(t, shared)
	const resource = fence.Resource("report:{acme}:17")
	if _, err := store.Acquire(ctx, resource, "me", time.Minute); err != nil {
		t.Fatal(err)
	}
	const tag = "wirefence:{report:%7Bacme%7D:17}"
	if got := redis.LeaseKey(resource); got != tag+":lease" {
		t.Errorf("lease key %s", got)
	}
	if got := redis.TokenKey(resource); got != tag+":token" {
		t.Errorf("token key %s", got)
	}
	if holder := client.Get(ctx, tag+":lease").Val(); holder != lockclient.HolderOf("me") {
		t.Errorf("holder %q", holder)
	}
	if left := client.PTTL(ctx, tag+":lease").Val(); left <= 0 || left > time.Minute {
		t.Errorf("the lease expires in %v", left)
	}
	if left := client.TTL(ctx, tag+":token").Val(); left != -1 {
		t.Errorf("the token counter expires in %v", left)
	}
}

func TestUnusableCounterLeavesNoLease(t *testing.T) {
	ctx, client, store := t.Context(), direct(t, shared), open(t, shared)
	for i, value := range []string{"x", "1.5", "007", "", " 1", "9223372036854775807", "9223372036854775808", "-9", "list"} {
		resource := fence.Resource(fmt.Sprint("counter ", i))
		if value == "list" {
			client.LPush(ctx, redis.TokenKey(resource), "x")
		} else {
			client.Set(ctx, redis.TokenKey(resource), value, 0)
		}
		_, err := store.Acquire(ctx, resource, "me", time.Minute)
		if !errors.Is(err, lockclient.ErrCounter) {
			t.Errorf("counter %q: %v", value, err)
			continue
		}
		for _, want := range []string{shared.Addr(), redis.TokenKey(resource)} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("counter %q: %q does not name %s", value, err, want)
			}
		}
		if client.Exists(ctx, redis.LeaseKey(resource)).Val() != 0 {
			t.Errorf("counter %q: a lease is left", value)
		}
	}
}

func TestErrorsNameTheServerNotThePassword(t *testing.T) {
	ctx := t.Context()
	server := ownServer(t)
	if err := direct(t, server).ConfigSet(ctx, "requirepass", "open-sesame").Err(); err != nil {
		t.Fatal(err)
	}
	_, err := open(t, server).Acquire(ctx, "r", "me", time.Minute)
	storetest.WantError(t, "no password", err, server.Addr(), true)
	store := storetest.Open(t, redis.Open, "redis://:open-sesame@"+server.Addr())
	storetest.Win(t, store, "r", "me", time.Minute)
	server.Kill()
	storetest.WantErrorsOfDeadServer(t, ctx, store, server.Addr())
}

func TestADeadlineEndsACallToAPausedServer(t *testing.T) {
	server := ownServer(t)
	storetest.ADeadlineEndsACall(t, open(t, server), server)
}

func TestAUserWithoutChannelsCanRelease(t *testing.T) {
	ctx := t.Context()
	server := ownServer(t)
	if err := direct(t, server).ACLSetUser(ctx, "app", "on", ">pw", "~wirefence:*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	store, err := redis.Open("redis://app:pw@" + server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if _, err := store.Acquire(ctx, "r", "me", time.Minute); err != nil {
		t.Fatal(err)
	}
	if held, err := store.Release(ctx, "r", "me"); !held || err != nil {
		t.Error(held, err)
	}
}
