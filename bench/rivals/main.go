// Command rivals measures the lock client beside other libraries that keep locks
// in Redis, on one server and in turn, and prints the rates as JSON for bench.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/bsm/redislock"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// ttl is how long all hold a lock.
const ttl = 15 * time.Second

// pass acquires and releases a lock.
type pass func(ctx context.Context) error

// library is the lock client or what it is compared with, as its documentation shows it.
type library struct {
	Name  string
	Rates []float64 // passes per second, one of each round
	open  func(addr string) (once pass, close func(), err error)
}

func libraries() []*library {
	return []*library{
		{Name: "lock client", open: openWirefence}, {Name: "bsm/redislock", open: openRedislock}, {Name: "rueidislock", open: openRueidislock},
	}
}

func main() {
	log.SetFlags(0)
	rounds := flag.Int("rounds", 5, "how often each rate is measured")
	during := flag.Duration("during", 3*time.Second, "how long one rate is measured")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	all, err := measure(ctx, *rounds, *during)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		log.Fatal(err)
	}
}

// measure lets all libraries take turns, round after round.
func measure(ctx context.Context, rounds int, during time.Duration) ([]*library, error) {
	server, err := servers.StartRedis(ctx)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	all := libraries()
	for range rounds {
		for _, l := range all {
			if err := l.measure(ctx, server.Addr(), during); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func (l *library) measure(ctx context.Context, addr string, during time.Duration) error {
	once, done, err := l.open(addr)
	if err != nil {
		return err
	}
	defer done()
	calls := context.WithoutCancel(ctx) // the lock client hands over to a goroutine what can be cancelled; others don't heed it
	began, n := time.Now(), 0
	for ; time.Since(began) < during && ctx.Err() == nil; n++ {
		if err := once(calls); err != nil {
			return err
		}
	}
	l.Rates = append(l.Rates, float64(n)/time.Since(began).Seconds())
	return ctx.Err()
}

func connect(addr string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
}

func openWirefence(addr string) (pass, func(), error) {
	store := redis.New(connect(addr))
	client, err := lockclient.New(store, lockclient.Options{Unsealed: true, TTL: ttl})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) error {
			lease, err := client.Acquire(ctx, "rate")
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		}, func() {
			_ = client.Close(context.Background())
			_ = store.Close()
		}, nil
}

func openRedislock(addr string) (pass, func(), error) {
	client := connect(addr)
	locks := redislock.New(client)
	return func(ctx context.Context) error {
		held, err := locks.Obtain(ctx, "redislock", ttl, nil)
		if err != nil {
			return err
		}
		return held.Release(ctx)
	}, func() { _ = client.Close() }, nil
}

func openRueidislock(addr string) (pass, func(), error) {
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyValidity: ttl, KeyMajority: 1,
	})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) error {
		_, cancel, err := locks.WithContext(ctx, "rueidislock")
		if err == nil {
			cancel()
		}
		return err
	}, locks.Close, nil
}
