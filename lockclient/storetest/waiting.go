package storetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// counted counts the acquires that a store is asked for.
type counted struct {
	lockclient.Store
	lockclient.Notifier
	acquires *atomic.Int64
}

func (c counted) Acquire(ctx context.Context, resource fence.Resource, holder string, ttl time.Duration) (lockclient.Attempt, error) {
	c.acquires.Add(1)
	return c.Store.Acquire(ctx, resource, holder, ttl)
}

// hundredWaiters lets a hundred waiters of four clients hold a resource one after the
// other; each client has its own store, as four processes would. At each release every
// client may ask once; further requests are polling.
func (s suite) hundredWaiters(t *testing.T) {
	x := s.session(t)
	const clients, waiters = 4, 25
	var acquires atomic.Int64
	open := func(i int) *lockclient.Client {
		store := s.open(t)
		if notifier, ok := store.(lockclient.Notifier); ok {
			store = counted{store, notifier, &acquires}
		}
		client, err := lockclient.New(store, lockclient.Options{Unsealed: true, TTL: long, Holder: fmt.Sprint("client", i)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close(context.Background()) })
		return client
	}
	first, err := open(0).Acquire(x.ctx, x.resource)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var holding sync.Mutex
	var grants atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		client := open(i + 1)
		for range waiters {
			all.Go(func() {
				lease, err := client.Acquire(x.ctx, x.resource)
				if err != nil {
					t.Error(err)
					return
				}
				if !holding.TryLock() {
					t.Error("two holders")
					return
				}
				grants.Add(1)
				holding.Unlock()
				if err := lease.Release(x.ctx); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err := first.Release(x.ctx); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	polls := clients * (10 + 2*int64(time.Since(began)/time.Second))
	if n := acquires.Load(); grants.Load() != clients*waiters || n > (clients+1)*clients*waiters+polls {
		t.Errorf("%d grants took %d acquires", grants.Load(), n)
	}
}
