package redis_test

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

var scriptCalls = regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+)`)

// executed returns the number of scripts that the server has run.
func executed(t testing.TB, client *goredis.Client) (calls int) {
	t.Helper()
	stats, err := client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range scriptCalls.FindAllStringSubmatch(stats, -1) {
		n, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		calls += n
	}
	return calls
}

// A hundred waiters of ten clients send Redis as many requests as ten: one for each
// client at a release, and one each half second to second besides.
func TestWaitersDoNotStormRedis(t *testing.T) {
	const clients, waiters = 10, 10
	server := ownServer(t)
	began := time.Now()
	ctx := t.Context()
	var all sync.WaitGroup
	for i := range clients {
		client, err := lockclient.New(open(t, server), lockclient.Options{Unsealed: true, Holder: fmt.Sprint("process", i)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close(context.Background()) })
		for range waiters {
			all.Go(func() {
				lease, err := client.Acquire(ctx, "orders")
				if err != nil {
					t.Error(err)
					return
				}
				if err := lease.Release(ctx); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	const grants = clients * waiters
	polls := clients * (10 + 2*int(time.Since(began)/time.Second))
	n := executed(t, direct(t, server))
	t.Logf("%d grants in %v took %d scripts", grants, time.Since(began), n)
	if n > grants*(clients+2)+polls {
		t.Errorf("%d grants took %d scripts", grants, n)
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
