package main

import (
	"context"
	"errors"
	"log"
	"math/rand/v2"
	"time"
)

// patience is how long a waiter waits. One of rueidislock was seen to wait for ever, on a
// busy machine, after the lock had been released.
const patience = 10 * time.Second

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
		waiting, cancel := context.WithTimeout(ctx, patience)
		defer cancel() // not before: a lock may end with it
		go func() {
			lock, err := other.acquire(waiting, "handoff")
			next <- taken{lock, time.Now(), err}
		}()
		select {
		case <-time.After(20*time.Millisecond + rand.N(200*time.Millisecond)):
		case <-ctx.Done():
		}
		released := time.Now()
		releaseErr := held.release(ctx)
		got := <-next
		if errors.Is(got.err, context.DeadlineExceeded) && ctx.Err() == nil {
			log.Printf("a waiter did not get the lock within %v of its release; this round has no more handoffs", patience)
			return all, releaseErr
		} else if got.err != nil {
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
