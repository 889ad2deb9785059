// Command locks takes a lock of bsm/redislock or redsync, or River's leadership, and gives it back as it
// is told.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

func main() {
	library, url, key := os.Args[1], os.Args[2], os.Args[3]
	seconds, err := strconv.Atoi(os.Args[4])
	if err != nil {
		panic(err)
	}
	does := map[string]func(ctx context.Context, url, key string, ttl time.Duration) map[string]func() error{
		"redislock": ofRedislock, "redsync": ofRedsync, "river": ofRiver,
	}[library](context.Background(), url, key, time.Duration(seconds)*time.Second)
	for told := bufio.NewScanner(os.Stdin); told.Scan(); {
		if err := does[told.Text()](); err != nil {
			fmt.Fprintln(os.Stderr, told.Text(), err)
			fmt.Println("no")
			continue
		}
		fmt.Println("yes")
	}
}

func redisClient(url string) *redis.Client {
	options, err := redis.ParseURL(url)
	if err != nil {
		panic(err)
	}
	return redis.NewClient(options)
}

func ofRedislock(ctx context.Context, url, key string, ttl time.Duration) map[string]func() error {
	client := redisClient(url)
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

func ofRedsync(ctx context.Context, url, key string, ttl time.Duration) map[string]func() error {
	lock := redsync.New(goredis.NewPool(redisClient(url))).NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1))
	done := func(_ bool, err error) error { return err }
	return map[string]func() error{
		"acquire": func() error { return lock.LockContext(ctx) },
		"extend":  func() error { return done(lock.ExtendContext(ctx)) },
		"release": func() error { return done(lock.UnlockContext(ctx)) },
	}
}

// ofRiver elects as River's clients do, each under a name of its own.
func ofRiver(ctx context.Context, url, _ string, ttl time.Duration) map[string]func() error {
	pool, err := pgxpool.New(ctx, strings.TrimPrefix(url, "jdbc:"))
	if err != nil {
		panic(err)
	}
	exec, id := riverpgxv5.New(pool).GetExecutor(), rand.Text()
	var term *riverdriver.Leader
	return map[string]func() error{
		"acquire": func() error {
			tx, err := exec.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(ctx) }()
			if _, err := tx.LeaderDeleteExpired(ctx, &riverdriver.LeaderDeleteExpiredParams{}); err != nil {
				return err
			}
			elected, err := tx.LeaderAttemptElect(ctx, &riverdriver.LeaderElectParams{LeaderID: id, TTL: ttl})
			if err == nil {
				err = tx.Commit(ctx)
			}
			if err == nil {
				term = elected
			}
			return err
		},
		"extend": func() error {
			_, err := exec.LeaderAttemptReelect(ctx, &riverdriver.LeaderReelectParams{LeaderID: id, ElectedAt: term.ElectedAt, TTL: ttl})
			return err
		},
		"release": func() error {
			resigned, err := exec.LeaderResign(ctx, &riverdriver.LeaderResignParams{LeaderID: id, ElectedAt: term.ElectedAt, LeadershipTopic: "river_leadership"})
			if err == nil && !resigned {
				err = errors.New("it leads no more")
			}
			return err
		},
	}
}
