package main

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// leaseRates are pairs of acquire and release per second, of each round: by the
// least that the scripts must do, and by the lock client on the same go-redis
// client. Neither seals.
type leaseRates struct{ bare, client []float64 }

func (r *leaseRates) ratios() (all []float64) {
	for i := range r.bare {
		all = append(all, r.client[i]/r.bare[i])
	}
	return all
}

func measureLeases(ctx context.Context, rounds, seconds int) (*leaseRates, error) {
	server, err := servers.StartRedis(ctx)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	store := redis.New(client)
	defer store.Close()
	locks, err := lockclient.New(store, lockclient.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = locks.Close(ctx) }()
	bare, err := bareLease(client)
	if err != nil {
		return nil, err
	}
	leased := func(ctx context.Context) error {
		lease, err := locks.TryAcquire(ctx, "bench")
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}
	rates := &leaseRates{}
	for range rounds {
		for _, side := range []struct {
			do    func(context.Context) error
			rates *[]float64
		}{{bare, &rates.bare}, {leased, &rates.client}} {
			rate, err := perSecond(ctx, time.Duration(seconds)*time.Second, side.do)
			if err != nil {
				return nil, err
			}
			*side.rates = append(*side.rates, rate)
		}
	}
	return rates, nil
}

func bareLease(client *goredis.Client) (func(context.Context) error, error) {
	acquireText, err := scripts.ReadFile("scripts/acquire.lua")
	if err != nil {
		return nil, err
	}
	releaseText, err := scripts.ReadFile("scripts/release.lua")
	if err != nil {
		return nil, err
	}
	acquire, release := goredis.NewScript(string(acquireText)), goredis.NewScript(string(releaseText))
	keys := []string{"bare:{bench}:lease", "bare:{bench}:token"}
	return func(ctx context.Context) error {
		if err := acquire.Run(ctx, client, keys, "holder", "15000").Err(); err != nil {
			return err
		}
		return release.Run(ctx, client, keys[:1], "holder").Err()
	}, nil
}

func perSecond(ctx context.Context, during time.Duration, do func(context.Context) error) (float64, error) {
	began, n := time.Now(), 0
	for time.Since(began) < during {
		if err := do(ctx); err != nil {
			return 0, err
		}
		n++
	}
	return float64(n) / time.Since(began).Seconds(), nil
}
