package jobstest

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// goJob is the variable that makes the test's binary a job, with its name.
const goJob = "WFTEST_JOB"

var goJobs = map[string]func(context.Context) error{
	"river": workRiver, "redsync": underRedsync, "redislock": underRedislock, "leader": lead,
}

func underRedsync(ctx context.Context) error {
	client, err := redisClient()
	if err != nil {
		return err
	}
	mutex := redsync.New(goredis.NewPool(client)).NewMutex("nightly", redsync.WithExpiry(time.Minute), redsync.WithTries(1))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	err = count(ctx)
	_, lost := mutex.UnlockContext(ctx)
	return errors.Join(err, lost)
}

func underRedislock(ctx context.Context) error {
	client, err := redisClient()
	if err != nil {
		return err
	}
	lock, err := redislock.Obtain(ctx, client, "nightly", time.Minute, nil)
	if err != nil {
		return err
	}
	return errors.Join(count(ctx), lock.Release(ctx))
}

// lead leads as long as a session of the pool has an advisory lock, and works on others.
func lead(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, "")
	if err != nil {
		return err
	}
	defer pool.Close()
	leader, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer leader.Release()
	var leads bool
	if err := leader.QueryRow(ctx, "SELECT pg_try_advisory_lock(7)").Scan(&leads); err != nil {
		return err
	}
	if !leads {
		return errors.New("another leads")
	}
	return countIn(ctx, pool)
}

func redisClient() (*redis.Client, error) {
	options, err := redis.ParseURL(os.Getenv("REDIS"))
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}

// count reads, and writes what it has computed.
func count(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, "")
	if err != nil {
		return err
	}
	defer pool.Close()
	return countIn(ctx, pool)
}

func countIn(ctx context.Context, pool *pgxpool.Pool) error {
	var orders int
	if err := pool.QueryRow(ctx, "SELECT orders FROM totals").Scan(&orders); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, "UPDATE totals SET orders = $1", orders+1)
	return err
}
