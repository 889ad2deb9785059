package redis_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
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
	client, err := lockclient.New(store, lockclient.Options{Unsealed: true})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close(context.Background())

	ctx := context.Background()
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

// BenchmarkHandoff measures the time from the call of a release to the return
// of the next acquire, with that many others waiting: each a client with
// connections of its own, as a process has. It also tells how many commands
// Redis executed for each handoff.
func BenchmarkHandoff(b *testing.B) {
	for _, waiters := range []int{1, 10, 100} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) { handoff(b, waiters) })
	}
}

func handoff(b *testing.B, waiters int) {
	server := ownServer(b)
	ctx, cancel := context.WithCancel(b.Context())
	won := make(chan *lockclient.Lease)
	var all sync.WaitGroup
	for i := range waiters + 1 {
		client, err := lockclient.New(open(b, server), lockclient.Options{Unsealed: true, Holder: fmt.Sprint("process", i)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = client.Close(context.Background()) })
		all.Go(func() {
			for ctx.Err() == nil {
				lease, err := client.Acquire(ctx, "handoff")
				if err != nil {
					return
				}
				select {
				case won <- lease:
					<-lease.Context().Done()
				case <-ctx.Done():
				}
			}
		})
	}
	lease := <-won
	asked := direct(b, server)
	for asked.PubSubNumSub(ctx, "wirefence:{handoff}:released").Val()["wirefence:{handoff}:released"] < int64(waiters) {
		time.Sleep(10 * time.Millisecond)
	}
	before := executed(b, asked)
	var times []time.Duration
	for b.Loop() {
		start := time.Now()
		if err := lease.Release(ctx); err != nil {
			b.Fatal(err)
		}
		lease = <-won
		times = append(times, time.Since(start))
	}
	commands := executed(b, asked) - before
	cancel()
	if err := lease.Release(b.Context()); err != nil {
		b.Fatal(err)
	}
	all.Wait()
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "median-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(commands)/float64(len(times)), "scripts/handoff")
}
