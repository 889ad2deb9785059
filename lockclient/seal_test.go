package lockclient_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// ledger is a Sealer in this process.
type ledger struct {
	mu     sync.Mutex
	last   map[fence.Resource]fence.Token
	seals  int
	before func(ctx context.Context) error
}

func (l *ledger) Seal(ctx context.Context, resource fence.Resource, token fence.Token, _ string) (bool, error) {
	if l.before != nil {
		if err := l.before(ctx); err != nil {
			return false, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seals++
	if token <= l.last[resource] {
		return false, nil
	}
	if l.last == nil {
		l.last = map[fence.Resource]fence.Token{}
	}
	l.last[resource] = token
	return true, nil
}

func (l *ledger) LastToken(_ context.Context, resource fence.Resource) (fence.Token, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[resource], nil
}

// Evidence: I3
func TestAForgetfulStoreIssuesNoTokenTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &ledger{}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		var last fence.Token
		for range 5 {
			for range 3 {
				lease := acquire(t, client)
				if lease.Token() != last+1 {
					t.Errorf("token %d after %d", lease.Token(), last)
				}
				last = lease.Token()
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			store.forget()
		}
	})
}

func TestAFailedSealIsNoGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &ledger{}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		sealer.before = func(context.Context) error { return errDown }
		lease, err := client.Acquire(t.Context(), "orders")
		seal, ok := errors.AsType[*lockclient.SealError](err)
		if lease != nil || !ok || seal.Token != 1 || !errors.Is(err, errDown) {
			t.Fatal(lease, err)
		}
		if store.holder("orders") != "" {
			t.Errorf("held by %q", store.holder("orders"))
		}
	})
}

func TestSealTimeCountsAgainstTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &ledger{}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		delay := ttl - margin - time.Second
		sealer.before = func(context.Context) error {
			<-time.After(delay) // heeds no context
			return nil
		}
		store.script(failing("renew", errDown), nil)
		lease := acquire(t, client)
		if left := wantEnd(t, lease, lockclient.ErrUnreachable); left != time.Second {
			t.Errorf("the lease had %v left", left)
		}
		_ = lease.Release(t.Context())
		store.script(nil, nil)
		delay = ttl - margin
		lease, err := client.Acquire(t.Context(), "orders")
		if lease != nil || !errors.Is(err, lockclient.ErrExpired) {
			t.Error(lease, err)
		}
		if store.holder("orders") != "" {
			t.Errorf("held by %q", store.holder("orders"))
		}
	})
}

func TestAnEndedContextEndsTheSeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &ledger{}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		sealer.before = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if lease, err := client.Acquire(ctx, "orders"); lease != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(lease, err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
		synctest.Wait()
		if store.holder("orders") != "" {
			t.Errorf("held by %q", store.holder("orders"))
		}
		if lease, err := client.Acquire(t.Context(), "orders"); lease != nil || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Error("the client's own patience passes for the caller's:", lease, err)
		}
	})
}

func TestAStoreThatCantBeRaised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sealer := newMemory(), &ledger{last: map[fence.Resource]fence.Token{"orders": 7}}
		client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
		store.script(failing("raise", errDown), nil)
		if lease, err := client.Acquire(t.Context(), "orders"); lease != nil || !errors.Is(err, errDown) {
			t.Error(lease, err)
		}
		store.script(nil, nil)
		if lease := acquire(t, client); lease.Token() != 8 {
			t.Errorf("token %d", lease.Token())
		}
	})
}
