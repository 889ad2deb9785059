package redis_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

//go:embed acquire.lua
var acquireLua string

//go:embed release.lua
var releaseLua string

// BenchmarkAcquireRelease compares an acquire and a release by the client with
// the bare scripts, called through the same go-redis client, by one goroutine
// and by several on resources of their own. The two take turns, so that other
// load on the machine meets both.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, workers := range []int{1, 16} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) { benchmark(b, workers) })
	}
}

func benchmark(b *testing.B, workers int) {
	server := ownServer(b)
	opts, err := goredis.ParseURL(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	opts.ContextTimeoutEnabled = true
	goClient := goredis.NewClient(opts)
	store := redis.New(goClient)
	defer store.Close()
	client, err := lockclient.New(store, lockclient.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close(context.Background())

	ctx := b.Context()
	acquire, release := goredis.NewScript(acquireLua), goredis.NewScript(releaseLua)
	bare := func(resource fence.Resource) error {
		lease := redis.LeaseKey(resource)
		err := acquire.Run(ctx, goClient, []string{lease, redis.TokenKey(resource)}, "holder", "15000").Err()
		return errors.Join(err, release.Run(ctx, goClient, []string{lease}, "holder", "channel").Err())
	}
	through := func(resource fence.Resource) error {
		lease, err := client.Acquire(ctx, resource)
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}
	const pairs = 20 // by each worker in each turn
	turn := func(pair func(fence.Resource) error) time.Duration {
		start := time.Now()
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() {
				for range pairs {
					if err := pair(fence.Resource(fmt.Sprint("bench", i))); err != nil {
						b.Error(err)
					}
				}
			})
		}
		all.Wait()
		return time.Since(start)
	}
	var bareTime, clientTime time.Duration
	for b.Loop() {
		bareTime += turn(bare)
		clientTime += turn(through)
	}
	total := float64(b.N * workers * pairs)
	b.ReportMetric(total/bareTime.Seconds(), "bare/s")
	b.ReportMetric(total/clientTime.Seconds(), "client/s")
	b.ReportMetric(bareTime.Seconds()/clientTime.Seconds(), "ratio")
}
