package main

import (
	"context"
	_ "embed"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// ttl is how long all hold a lock that they don't renew.
const ttl = 15 * time.Second

// lock is what was acquired. Its context ends when the library notices a loss,
// where it does.
type lock struct {
	ctx     context.Context
	release func(ctx context.Context) error
}

// locker is a library that is connected. An acquire waits where the way does.
type locker struct {
	acquire func(ctx context.Context, name string) (*lock, error)
	close   func()
}

type way struct {
	name          string
	waits, renews bool
	open          func(addr string, renewEvery time.Duration) (locker, error)
}

// ways are the lock client and what it is compared with, each as its
// documentation shows it. The bare scripts are the least that a lease with a
// token takes.
var ways = []way{
	{"bare scripts: `SET NX PX` and `INCR`, compare and `DEL`", false, false, openBare},
	{"lock client", true, true, openWirefence},
	{"bsm/redislock, asking every 100 ms", true, false, openRedislock},
	{"redsync, asking every 50 to 250 ms", true, false, openRedsync},
	{"rueidislock, one key", true, true, openRueidislock},
}

//go:embed acquire.lua
var acquireLua string

//go:embed release.lua
var releaseLua string

func connect(addr string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
}

func openBare(addr string, _ time.Duration) (locker, error) {
	client := connect(addr)
	acquire, release := goredis.NewScript(acquireLua), goredis.NewScript(releaseLua)
	return locker{
		acquire: func(ctx context.Context, name string) (*lock, error) {
			keys := []string{"bare:{" + name + "}:lease", "bare:{" + name + "}:token"}
			err := acquire.Run(ctx, client, keys, "holder", ttl.Milliseconds()).Err()
			return &lock{ctx, func(ctx context.Context) error { return release.Run(ctx, client, keys[:1], "holder").Err() }}, err
		},
		close: func() { _ = client.Close() },
	}, nil
}

func openWirefence(addr string, renewEvery time.Duration) (locker, error) {
	store := redis.New(connect(addr))
	client, err := lockclient.New(store, lockclient.Options{Unsealed: true, TTL: ttl, RenewEvery: renewEvery})
	if err != nil {
		return locker{}, err
	}
	return locker{
		acquire: func(ctx context.Context, name string) (*lock, error) {
			lease, err := client.Acquire(ctx, fence.Resource(name))
			if err != nil {
				return nil, err
			}
			return &lock{lease.Context(), lease.Release}, nil
		},
		close: func() {
			_ = client.Close(context.Background())
			_ = store.Close()
		},
	}, nil
}

func openRedislock(addr string, _ time.Duration) (locker, error) {
	client := connect(addr)
	locks := redislock.New(client)
	return locker{
		acquire: func(ctx context.Context, name string) (*lock, error) {
			held, err := locks.Obtain(ctx, "redislock:"+name, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
			if err != nil {
				return nil, err
			}
			return &lock{ctx, held.Release}, nil
		},
		close: func() { _ = client.Close() },
	}, nil
}

func openRedsync(addr string, _ time.Duration) (locker, error) {
	client := connect(addr)
	locks := redsync.New(redsyncredis.NewPool(client))
	return locker{
		acquire: func(ctx context.Context, name string) (*lock, error) {
			mutex := locks.NewMutex("redsync:"+name, redsync.WithExpiry(ttl))
			if err := mutex.LockContext(ctx); err != nil {
				return nil, err
			}
			return &lock{ctx, func(ctx context.Context) error {
				_, err := mutex.UnlockContext(ctx)
				return err
			}}, nil
		},
		close: func() { _ = client.Close() },
	}, nil
}

func openRueidislock(addr string, renewEvery time.Duration) (locker, error) {
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}},
		KeyValidity:  ttl, ExtendInterval: renewEvery, KeyMajority: 1, // NoLoopTracking is off: with it, an acquire soon after the same locker's release may wait for ever
	})
	if err != nil {
		return locker{}, err
	}
	return locker{
		acquire: func(ctx context.Context, name string) (*lock, error) {
			held, cancel, err := locks.WithContext(ctx, name)
			if err != nil {
				return nil, err
			}
			return &lock{held, func(context.Context) error {
				cancel()
				return nil
			}}, nil
		},
		close: locks.Close,
	}, nil
}
