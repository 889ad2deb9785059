package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
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
	return stack.Started(servers.StartRedis(t.Context(), args...)).EndWith(t)
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

func TestOpenHidesABadURL(t *testing.T) {
	for url, want := range map[string]string{
		"open-sesame":                                      "not a URL",
		"redis://:open-sesame@host:port":                   "host 1 of 1",
		"redis://:open-sesame@host:65536":                  "host 1 of 1",
		"redis://:open-sesame@host/-1":                     "negative",
		"redis-sentinel://:open-sesame@a/-1?master_name=m": "negative",
		"http://:open-sesame@host":                         "scheme",
		"redis://:open-sesame@host/x":                      "database",
		"redis://:open-sesame@host/0?nothing=1":            "nothing",
		"redis://:open/sesame@host":                        "not a URL",
		"redis://:12/open-sesame@host:6379":                "not a URL",
		"redis://:open?sesame@host":                        "not a URL",
		"redis://:open#sesame@host":                        "not a URL",
		"redis://:open%sesame@host":                        "not a URL",
		"redis://user:open-sesame":                         "host 1 of 1",
		"redis://:open-sesame@host?sentinel_password=%zz":  "not a URL",
		"redis://:open-sesame@a,b":                         "redis-sentinel:// or redis-cluster://",
		"redis://:open-sesame@a?master_name=m":             "redis-sentinel://",
		"redis://:open-sesame@a?tls_server_name=m":         "rediss",
		"unix://:open-sesame@":                             "empty unix socket path",

		"redis-sentinel://:open-sesame@a,b":                                        "master_name is missing",
		"redis-sentinel://:open-sesame@?master_name=m":                             "host 1 of 1",
		"redis-sentinel://:open-sesame@a,,b?master_name=m":                         "host 2 of 3",
		"redis-sentinel://:open-sesame@a:?master_name=m":                           "host 1 of 1",
		"redis-sentinel://:open-sesame@a/zero?master_name=m":                       "database",
		"redis-sentinel://a?master_name=m&password=open-sesame":                    "sentinel_password",
		"redis-sentinel://:open-sesame@a?master_name=m&replica_only=true":          "masters only",
		"redis-sentinel://:open-sesame@a?master_name=m&route_by_latency=true":      "masters only",
		"redis-sentinel://:open-sesame@a?master_name=m&sentinel_password=a@sesame": "not a URL",
		"redis-sentinel://:open-sesame@a?master_name=m&dial_timeout=long":          "dial_timeout",

		"redis-cluster://:open-sesame@a,b/1":                 "database 0 only",
		"redis-cluster://:open-sesame@a,b?db=1":              "database 0 only",
		"redis-cluster://:open-sesame@a,b?master_name=m":     "redis-sentinel://",
		"redis-cluster://:open-sesame@a,b?read_only=true":    "masters only",
		"redis-cluster://:open-sesame@a,b?skip_verify=true":  "needs TLS",
		"rediss-cluster://:open-sesame@a,b?skip_verify=oops": "skip_verify must be",
		"redis-cluster://:open-sesame@a,b:x":                 "host 2 of 2",
	} {
		store, err := redis.Open(url)
		if err == nil {
			_ = store.Close()
			t.Errorf("%s: opened", url)
		} else if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
}

// Errors name the servers of a connection string, and nothing else of it.
func TestOpenReadsEveryForm(t *testing.T) {
	for url, want := range map[string]string{
		"redis://":                                   "localhost:6379",
		"redis://user:open-sesame@host":              "host:6379",
		"redis://:open%2Fsesame@[::1]:7/3":           "[::1]:7",
		"rediss://host?tls_server_name=other":        "host:6379",
		"unix://:open-sesame@/run/redis.sock?db=2":   "/run/redis.sock",
		"redis-cluster://:open-sesame@a,b:7,[::1]/0": "a:6379,b:7,[::1]:6379",
		"rediss-cluster://a,b?skip_verify=true":      "a:6379,b:6379",
		"redis-sentinel://u:open-sesame@a,b:7/2?master_name=m&sentinel_username=s&sentinel_password=sesame": "m of Sentinels a:26379,b:7",
		"rediss-sentinel://a,b?master_name=m&skip_verify=true&tls_server_name=redis":                        "m of Sentinels a:26379,b:26379",
	} {
		store, err := redis.Open(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		_ = store.Close() // so that nothing is looked up
		_, err = store.Acquire(t.Context(), "r", "me", time.Minute)
		if err == nil || !strings.Contains(err.Error(), "redis at "+want+": ") || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
}

// A client that is closed under its waiters, as where deferred calls are in the wrong order,
// leaves a listener that waits for them to leave.
func TestAListenerOfAClosedClientRests(t *testing.T) {
	t.Parallel()
	client := goredis.NewClient(&goredis.Options{Addr: shared.Addr()})
	store := redis.New(client)
	t.Cleanup(func() { _ = store.Close() })
	notices := make(chan struct{}, 1)
	stop, err := store.Notify(t.Context(), "orders", notices)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	<-notices // it listens
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	resting := regexp.MustCompile(`goroutine \d+ \[chan receive[^]]*\]:\n\S*redis\.\(\*Store\)\.listen\(`)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		all := make([]byte, 1<<20)
		if all = all[:runtime.Stack(all, true)]; resting.Match(all) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the listener doesn't rest:\n%s", all)
		}
	}
}

func TestRaiseHealsANegativeCounterOnly(t *testing.T) {
	ctx, client, store := t.Context(), direct(t, shared), open(t, shared)
	const resource = fence.Resource("raise")
	client.Set(ctx, redis.TokenKey(resource), "-5", 0)
	if err := store.Raise(ctx, resource, 4); err != nil {
		t.Fatal(err)
	}
	if got := client.Get(ctx, redis.TokenKey(resource)).Val(); got != "4" {
		t.Errorf("raised to %s", got)
	}
	client.Set(ctx, redis.TokenKey(resource), "four", 0)
	if err := store.Raise(ctx, resource, 4); !errors.Is(err, lockclient.ErrCounter) {
		t.Error(err)
	}
}
