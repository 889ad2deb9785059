package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wirefence/wirefence/lockclient"
)

// counting counts one kind of call.
func counting(name string, count *atomic.Int64) func(context.Context, string) error {
	return func(_ context.Context, call string) error {
		if call == name {
			count.Add(1)
		}
		return nil
	}
}

func TestWaitersOfAClientHaveTheirTurnInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 100
		var asked atomic.Int64
		store := newMemory()
		store.script(counting("acquire", &asked), nil)
		client := newClient(t, store, lockclient.Options{})
		first := acquire(t, client)
		var order []int
		var all sync.WaitGroup
		for i := range waiters {
			all.Go(func() {
				lease := acquire(t, client)
				order = append(order, i) // by the holder only
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		if n := asked.Load(); n > 4 {
			t.Errorf("%d waiters asked %d times while the lease was held", waiters, n)
		}
		release(t, first)
		all.Wait()
		if !slices.IsSorted(order) || len(order) != waiters {
			t.Errorf("order %v", order)
		}
		if n := asked.Load(); n > 2*waiters {
			t.Errorf("the store was asked %d times for %d grants", n, waiters+1)
		}
	})
}

func TestWhoGivesUpHandsItsTurnOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t, newMemory(), lockclient.Options{})
		first := acquire(t, client)
		wait := func(within time.Duration) chan error {
			done := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				lease, err := client.Acquire(ctx, "orders")
				if err == nil {
					err = lease.Release(t.Context())
				}
				done <- err
			}()
			synctest.Wait()
			return done
		}
		head, middle, last := wait(2*time.Second), wait(time.Second), wait(time.Hour)
		for _, done := range []chan error{middle, head} {
			if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		freed := time.Now()
		release(t, first)
		if err := <-last; err != nil || time.Since(freed) != 0 {
			t.Errorf("%v, after %v", err, time.Since(freed))
		}
	})
}

// If a store is down, all waiters fail, and only the first asks the store.
func TestAFailureEndsTheWaitOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		lease := acquire(t, client)
		errs := make(chan error, 100)
		for range cap(errs) {
			go func() {
				_, err := client.Acquire(t.Context(), "orders")
				errs <- err
			}()
		}
		synctest.Wait()
		store.script(func(_ context.Context, call string) error {
			if call != "acquire" {
				return nil
			}
			asked.Add(1)
			return errDown
		}, nil)
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, errDown) {
				t.Error(err)
			}
		}
		if asked.Load() != 1 {
			t.Errorf("asked %d times", asked.Load())
		}
		store.script(nil, nil)
		release(t, lease)
		acquire(t, client)
	})
}

// An acquire with a short TTL has less time for the store and the seal than the others.
func TestAShortTTLEndsNoOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		first := acquire(t, client)
		errs := make(chan error)
		for _, within := range []time.Duration{time.Second, ttl} {
			go func() {
				_, err := client.Acquire(t.Context(), "orders", lockclient.WithTTL(within))
				errs <- err
			}()
			synctest.Wait()
		}
		store.script(func(ctx context.Context, call string) error {
			if call != "acquire" {
				return nil
			}
			select {
			case <-time.After(2 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, nil)
		release(t, first)
		if err := <-errs; err == nil || !strings.Contains(err.Error(), "no answer within 800ms") {
			t.Errorf("the short one: %v", err)
		}
		if err := <-errs; err != nil {
			t.Errorf("the other: %v", err)
		}
	})
}

// Several clients that acquire a resource again and again all get it: those with a queue
// of waiters, and those that acquire again right after their release.
func TestNoClientStarves(t *testing.T) {
	// No time passes between a release and the next acquire here, so that
	// the second of two has its chance only when the first gives way: once in a
	// second, or 100 grants.
	for _, c := range []struct{ clients, waiters, turns, longest int }{{20, 5, 20, 2500}, {50, 1, 40, 1250}, {2, 1, 400, 110}} {
		t.Run(fmt.Sprintf("%d x %d", c.clients, c.waiters), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if longest := takeTurns(t, c.clients, c.waiters, c.turns); longest > c.longest {
					t.Errorf("the longest wait was %d grants, want %d at most", longest, c.longest)
				}
			})
		})
	}
}

// takeTurns returns the largest number of grants to others that a waiter saw before its
// own.
func takeTurns(t *testing.T, clients, waiters, turns int) (longest int) {
	store := newMemory()
	grants := 0 // as longest, used by the holder only
	var running sync.WaitGroup
	for i := range clients {
		client := newClient(t, store, lockclient.Options{Holder: fmt.Sprint("client", i)})
		for range waiters {
			running.Go(func() {
				last := 0
				for range turns {
					lease := acquire(t, client)
					longest = max(longest, grants-last)
					grants++
					last = grants
					<-time.After(10 * time.Millisecond)
					if err := lease.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	running.Wait()
	t.Logf("%d grants, the longest wait of a waiter was %d of them", grants, longest)
	if grants != clients*waiters*turns {
		t.Errorf("%d grants", grants)
	}
	return longest
}
