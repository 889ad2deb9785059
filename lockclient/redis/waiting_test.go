package redis_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/lockclient"
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
