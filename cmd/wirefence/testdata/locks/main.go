// Command locks takes a lock of bsm/redislock or redsync, and gives it back as it is told.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	library, key := os.Args[1], os.Args[3]
	options, err := redis.ParseURL(os.Args[2])
	if err != nil {
		panic(err)
	}
	client := redis.NewClient(options)
	seconds, err := strconv.Atoi(os.Args[4])
	if err != nil {
		panic(err)
	}
	does := map[string]func(ctx context.Context, client *redis.Client, key string, ttl time.Duration) map[string]func() error{
		"redislock": ofRedislock, "redsync": ofRedsync,
	}[library](context.Background(), client, key, time.Duration(seconds)*time.Second)
	for told := bufio.NewScanner(os.Stdin); told.Scan(); {
		if err := does[told.Text()](); err != nil {
			fmt.Fprintln(os.Stderr, told.Text(), err)
			fmt.Println("no")
			continue
		}
		fmt.Println("yes")
	}
}

func ofRedislock(ctx context.Context, client *redis.Client, key string, ttl time.Duration) map[string]func() error {
	var lock *redislock.Lock
	return map[string]func() error{
		"acquire": func() error {
			taken, err := redislock.Obtain(ctx, client, key, ttl, nil)
			if err == nil {
				lock = taken
			}
			return err
		},
		"extend":  func() error { return lock.Refresh(ctx, ttl, nil) },
		"release": func() error { return lock.Release(ctx) },
	}
}

func ofRedsync(ctx context.Context, client *redis.Client, key string, ttl time.Duration) map[string]func() error {
	lock := redsync.New(goredis.NewPool(client)).NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1))
	done := func(_ bool, err error) error { return err }
	return map[string]func() error{
		"acquire": func() error { return lock.LockContext(ctx) },
		"extend":  func() error { return done(lock.ExtendContext(ctx)) },
		"release": func() error { return done(lock.UnlockContext(ctx)) },
	}
}
