package lockclient_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/storetest"
)

// memory is a store in this process. It can use the time of a synctest bubble, and fail
// in ways in which a real store cannot be made to fail.
type memory struct {
	mu       sync.Mutex
	leases   map[fence.Resource]memoryLease
	counters map[fence.Resource]fence.Token
	waiters  map[chan<- struct{}]fence.Resource

	// before runs before each call, with its name and without the lock; its error fails the
	// call. after runs between the call and its answer.
	before, after func(ctx context.Context, call string) error
}

type memoryLease struct {
	holder string
	until  time.Time
}

func newMemory() *memory {
	return &memory{
		leases: map[fence.Resource]memoryLease{}, counters: map[fence.Resource]fence.Token{},
		waiters: map[chan<- struct{}]fence.Resource{},
	}
}

func (m *memory) call(ctx context.Context, name string, do func() error) error {
	m.mu.Lock()
	before, after := m.before, m.after
	m.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if before != nil {
		if err := before(ctx, name); err != nil {
			return err
		}
	}
	m.mu.Lock()
	err := do()
	m.mu.Unlock()
	if err == nil && after != nil {
		err = after(ctx, name)
	}
	return err
}

// script sets the functions that run around each call from now on.
func (m *memory) script(before, after func(ctx context.Context, call string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before, m.after = before, after
}

// forget deletes all data of the store.
func (m *memory) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.leases)
	clear(m.counters)
}

// holder returns the holder of the lease by the store's clock, "" if nobody has it.
func (m *memory) holder(resource fence.Resource) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heldBy(resource).holder
}

func (m *memory) heldBy(resource fence.Resource) memoryLease {
	if lease := m.leases[resource]; time.Now().Before(lease.until) {
		return lease
	}
	return memoryLease{}
}

func (m *memory) Acquire(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (attempt lockclient.Attempt, err error) {
	holder := lockclient.HolderOf(grant)
	err = m.call(ctx, "acquire", func() error {
		if other := m.heldBy(resource); other.holder != "" && other.holder != holder {
			attempt = lockclient.Attempt{Holder: other.holder, Remaining: time.Until(other.until)}
			return nil
		}
		if m.counters[resource] == math.MaxInt64 {
			return fmt.Errorf("memory: %w", lockclient.ErrCounter)
		}
		m.counters[resource]++
		m.leases[resource] = memoryLease{holder, time.Now().Add(ttl)}
		attempt = lockclient.Attempt{Token: m.counters[resource]}
		return nil
	})
	if err != nil {
		return lockclient.Attempt{}, err
	}
	return attempt, nil
}

func (m *memory) Renew(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (held bool, err error) {
	holder := lockclient.HolderOf(grant)
	err = m.call(ctx, "renew", func() error {
		if held = m.heldBy(resource).holder == holder; held {
			m.leases[resource] = memoryLease{holder, time.Now().Add(ttl)}
		}
		return nil
	})
	return held && err == nil, err
}

func (m *memory) Release(ctx context.Context, resource fence.Resource, grant string) (held bool, err error) {
	holder := lockclient.HolderOf(grant)
	err = m.call(ctx, "release", func() error {
		if held = m.heldBy(resource).holder == holder; !held {
			return nil
		}
		delete(m.leases, resource)
		for waiter, of := range m.waiters {
			if of == resource {
				notice(waiter)
			}
		}
		return nil
	})
	return held && err == nil, err
}

func (m *memory) Raise(ctx context.Context, resource fence.Resource, token fence.Token) error {
	return m.call(ctx, "raise", func() error {
		m.counters[resource] = max(m.counters[resource], token)
		return nil
	})
}

func (m *memory) Notify(ctx context.Context, resource fence.Resource, released chan<- struct{}) (func(), error) {
	err := m.call(ctx, "notify", func() error {
		m.waiters[released] = resource
		notice(released)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waiters, released)
	}, nil
}

func notice(released chan<- struct{}) {
	select {
	case released <- struct{}{}:
	default:
	}
}

func TestMemoryConforms(t *testing.T) {
	store := newMemory()
	storetest.Run(t, func(testing.TB) lockclient.Store { return store })
}
