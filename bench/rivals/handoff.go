package main

import (
	"context"
	"math/rand/v2"
	"time"
)

// handoffs lets two lockers pass a lock to and fro, and times each release until
// the other's acquire has returned. A lock is held for a random time, so that
// those who ask from time to time are met anywhere between two questions.
func handoffs(ctx context.Context, n int, one, other locker) (all []time.Duration, err error) {
	type taken struct {
		lock *lock
		at   time.Time
		err  error
	}
	held, err := one.acquire(ctx, "handoff")
	if err != nil {
		return nil, err
	}
	for range n {
		next := make(chan taken, 1)
		go func() {
			lock, err := other.acquire(ctx, "handoff")
			next <- taken{lock, time.Now(), err}
		}()
		select {
		case <-time.After(20*time.Millisecond + rand.N(200*time.Millisecond)):
		case <-ctx.Done():
		}
		released := time.Now()
		releaseErr := held.release(ctx)
		got := <-next
		if got.err != nil {
			return nil, got.err
		}
		if releaseErr != nil {
			return nil, releaseErr
		}
		all = append(all, got.at.Sub(released))
		held, one, other = got.lock, other, one
	}
	return all, held.release(ctx)
}
