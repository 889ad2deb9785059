package suitetest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/relay"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

// Why tests differ where their key is a lock.
const (
	underWatch = "a lock's command is refused under WATCH"
	tooLarge   = "a command that names a lock is limited"
)

// redisSuites are tests of clients of Redis, with a key that many of them use, and those that differ
// where that is a lock.
var redisSuites = []struct {
	suite
	key string
}{
	{suite{name: "redis-py", run: redisPy, least: 1800, fenced: map[string]string{
		"test_connection_pool.py::TestHealthCheck::test_health_check_in_watched_pipeline":                      underWatch,
		"test_asyncio/test_connection_pool.py::TestHealthCheck::test_health_check_in_watched_pipeline[single]": underWatch,
		"test_asyncio/test_connection_pool.py::TestHealthCheck::test_health_check_in_watched_pipeline[pool]":   underWatch,
	}}, "foo"},
	{suite{name: "go-redis", run: goRedis, least: 500, fenced: map[string]string{
		"Client should handle big vals":                                                           tooLarge,
		"Commands strings should SetFromBuffer and GetToBuffer with 10 MiB payload":               tooLarge,
		"races should handle big vals in Set":                                                     tooLarge,
		"Tx should Watch":                                                                         underWatch,
		"races should Watch/Unwatch":                                                              underWatch,
		"Tx UNWATCH elision does not send UNWATCH after a committed EXEC":                         underWatch,
		"Tx UNWATCH elision does not send UNWATCH after an aborted EXEC (optimistic lock)":        underWatch,
		"Tx UNWATCH elision records no UNWATCH server-side after a committed EXEC (commandstats)": underWatch,
		"Tx UNWATCH elision records no UNWATCH server-side after an aborted EXEC (commandstats)":  underWatch,
		"Tx UNWATCH elision sends UNWATCH when a WATCH is re-armed after a committed EXEC":        underWatch,
	}}, "key"},
}

// Through the relay nothing differs that isn't about locks. Where a key of theirs is a lock, what is
// listed does.
func TestRedisSuites(t *testing.T) {
	for _, s := range redisSuites {
		t.Run(s.name, func(t *testing.T) {
			var want map[string]string
			direct := func(t *testing.T) map[string]string { return s.run(t, &way{port: stack.Port(redisServer(t).Addr())}) }
			t.Run("direct", func(t *testing.T) { want = direct(t) })
			for lock, listed := range map[string]map[string]string{"a key of no test": nil, s.key: s.fenced} {
				t.Run("with the lock "+lock, func(t *testing.T) {
					through := func() map[string]string { return s.run(t, &way{port: stack.Port(relayed(t, lock))}) }
					s.agree(t, want, func() map[string]string { return direct(t) }, through, listed)
				})
			}
		})
	}
}

func redisServer(t *testing.T) *servers.Redis {
	t.Helper()
	return stack.Started(servers.StartRedis(t.Context())).EndWith(t)
}

// relayed starts a Redis and a relay that follows a lock there, and returns the relay's address.
func relayed(t *testing.T, lock string) (addr string) {
	t.Helper()
	pg := stack.Postgres(t, 0)
	pool, err := pgxpool.New(t.Context(), pg.URL(stack.Database(t, pg)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r, err := relay.New(relay.Options{
		Listen: "127.0.0.1:0", Upstream: redisServer(t).URL(), Locks: map[string]fence.Resource{lock: "suite"}, Book: &adopt.Book{}, ID: "suite",
		Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: pool, Source: relay.Source}},
	})
	if err == nil {
		err = r.Listen(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // what is blocked ends at once
		_ = r.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return r.Addr().String()
}

// redisPy runs the tests of redis-py that need neither a cluster nor modules. Those of its reconnections
// now and then wait for ever, also directly.
func redisPy(t *testing.T, w *way) map[string]string {
	cmd := w.command(t, source("redis-py"), "/usr/bin/python3", "-m", "pytest", "-c", os.DevNull, "--rootdir=.", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider",
		"--continue-on-collection-errors", "--ignore=tests/test_auth", "-k", "not TestPubSubAutoReconnect", "-v", "--tb=short", "--redis-url=redis://127.0.0.1:"+w.port+"/0", "-m", "not redismod and not ssl and not onlycluster", "tests")
	cmd.Env = append(cmd.Env, "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1")
	all := map[string]string{}
	_ = read(t, all, "", cmd, pytests)
	return all
}

// goRedis runs the tests of go-redis that need one server without modules. RandomKey may find the
// state of a lock, and the 100 ms of "Set with expiration" may pass during a seal.
func goRedis(t *testing.T, w *way) map[string]string {
	report, endpoints := filepath.Join(t.TempDir(), "report.json"), filepath.Join(t.TempDir(), "endpoints.json")
	if err := os.WriteFile(endpoints, []byte(`{"one": {"endpoints": ["redis://127.0.0.1:`+w.port+`"]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := w.command(t, moduleDir(t, "github.com/redis/go-redis/v9"), "go", "test", "-mod=mod", "-count=1", "-run=^TestGinkgoSuite$", ".", "-ginkgo.seed=1", "-ginkgo.v", "-ginkgo.json-report="+report,
		"-ginkgo.skip=luster|Command Tips|Ring|Sentinel|RediSearch|FT\\.|imeseries|TS\\.|Probabilistic|VectorSet|JSON|Array Commands|HIMPORT|HotKeys|TLS|UniversalClient|Dialer|RandomKey|Set with expiration")
	cmd.Env = append(cmd.Env, "RE_CLUSTER=true", "REDIS_VERSION=7.0", "REDIS_ENDPOINTS_CONFIG_PATH="+endpoints)
	text, _ := cmd.CombinedOutput()
	keep(t, text)
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts   []string
			LeafNodeText, State, Type string
		}
	}
	file, err := os.ReadFile(report)
	if err := errors.Join(err, json.Unmarshal(file, &suites)); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	all := map[string]string{}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			if spec.State != "skipped" {
				all[strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")] = spec.State
			}
		}
	}
	return all
}
