package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		opts lockclient.Options
		want string // part of the error, "" for none
	}{
		{lockclient.Options{}, ""},
		{lockclient.Options{TTL: 20 * time.Millisecond}, ""},
		{lockclient.Options{TTL: 10 * time.Second, Margin: 5 * time.Second}, ""},
		{lockclient.Options{MaxHold: lockclient.NoMaxHold}, ""},
		{lockclient.Options{RetryMin: 5 * time.Second}, ""},
		{lockclient.Options{TTL: time.Millisecond}, "TTL"},
		{lockclient.Options{TTL: -time.Second}, "TTL"},
		{lockclient.Options{TTL: 9000 * time.Hour}, "TTL"}, // more than PostgreSQL's leases can have
		{lockclient.Options{Margin: -1}, "Margin"},
		{lockclient.Options{Margin: 8 * time.Second}, "half the TTL"},
		{lockclient.Options{RenewEvery: 10 * time.Second}, "RenewEvery"},
		{lockclient.Options{RenewEvery: -1}, "RenewEvery"},
		{lockclient.Options{MaxHold: -2}, "MaxHold"},
		{lockclient.Options{RetryMin: -1}, "RetryMin"},
		{lockclient.Options{RetryMax: time.Millisecond}, "RetryMax"},
		{lockclient.Options{Holder: strings.Repeat("x", 161)}, "Holder"},
		{lockclient.Options{Holder: "a\nb"}, "Holder"},
		{lockclient.Options{Source: "etcd-2"}, ""},
		{lockclient.Options{Source: "Etcd"}, "Source"},
		{lockclient.Options{Holder: "\xff"}, "Holder"},
	} {
		c.opts.Unsealed = true
		_, err := lockclient.New(newMemory(), c.opts)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.opts, err, c.want)
		}
	}
}

// New refuses a client whose grants nothing seals, unless Options.Unsealed is set.
func TestUnsealedClientsAreAskedFor(t *testing.T) {
	if _, err := lockclient.New(newMemory(), lockclient.Options{}); !errors.Is(err, lockclient.ErrUnsealed) {
		t.Errorf("without a sealer: %v", err)
	}
	for name, made := range map[string]struct {
		store lockclient.Store
		opts  lockclient.Options
	}{
		"permitted":             {newMemory(), lockclient.Options{Unsealed: true}},
		"a sealer":              {newMemory(), lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{}}}},
		"a store that seals":    {selfSealing{newMemory(), &record{}}, lockclient.Options{}},
		"permitted, for naught": {newMemory(), lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{}}, Unsealed: true}},
	} {
		if _, err := lockclient.New(made.store, made.opts); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// selfSealing is a store that reports its last grant.
type selfSealing struct {
	lockclient.Store
	lockclient.Record
}

func TestTryAcquireTellsWhoHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		lease := acquire(t, newClient(t, store, lockclient.Options{Holder: "worker-1"}))
		if !strings.HasPrefix(lease.Holder(), "worker-1/") || len(lease.Holder()) < len("worker-1/")+20 {
			t.Errorf("holder %q", lease.Holder())
		}
		none, err := newClient(t, store, lockclient.Options{}).TryAcquire(t.Context(), "orders")
		held, ok := errors.AsType[*lockclient.HeldError](err)
		if none != nil || !errors.Is(err, lockclient.ErrNotAcquired) || !ok {
			t.Fatal(none, err)
		}
		if held.Holder != lease.Holder() || held.Remaining != ttl || held.Resource != "orders" {
			t.Errorf("%+v", held)
		}
	})
}

func TestNothingIsNotALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		if _, err := client.TryAcquire(t.Context(), ""); err == nil {
			t.Error("a resource without a name")
		}
		store.script(failing("acquire", errDown), nil)
		for _, try := range []func(context.Context, fence.Resource, ...lockclient.AcquireOption) (*lockclient.Lease, error){client.TryAcquire, client.Acquire} {
			if lease, err := try(t.Context(), "orders"); lease != nil || !errors.Is(err, errDown) || errors.Is(err, lockclient.ErrNotAcquired) {
				t.Error(lease, err)
			}
		}
		store.script(hanging("acquire"), nil)
		if lease, err := client.Acquire(t.Context(), "orders"); lease != nil || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Error("a store that doesn't answer:", lease, err)
		}
	})
}

func TestAnEndedContextLeavesNoLease(t *testing.T) {
	boom := errors.New("boom")
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		won := make(chan struct{})
		store.script(nil, func(_ context.Context, call string) error {
			if call == "acquire" { // won, but the answer takes its time
				close(won)
				<-time.After(2 * time.Second)
			}
			return nil
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-won
			cancel(boom)
		}()
		start := time.Now()
		lease, err := client.Acquire(ctx, "orders")
		if lease != nil || !errors.Is(err, context.Canceled) || !errors.Is(err, boom) || errors.Is(err, lockclient.ErrNotAcquired) {
			t.Error(lease, err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("returned after %v", took)
		}
		if err := client.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if store.holder("orders") != "" {
			t.Errorf("held by %q", store.holder("orders"))
		}
	})
}

func TestWaiting(t *testing.T) {
	for _, notify := range []bool{true, false} {
		t.Run(fmt.Sprint("notify=", notify), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				if !notify {
					store.script(failing("notify", errDown), nil)
				}
				client := newClient(t, store, lockclient.Options{})
				lease := acquire(t, client)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if _, err := client.Acquire(ctx, "orders"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lockclient.ErrNotAcquired) {
					t.Error(err)
				}
				var freed time.Time
				go func() {
					<-time.After(10 * time.Second)
					freed = time.Now()
					_ = lease.Release(t.Context())
				}()
				next := acquire(t, client)
				late := time.Since(freed)
				if notify && late != 0 || late > time.Second {
					t.Errorf("acquired %v after the release", late)
				}
				if next.Token() <= lease.Token() || next.Holder() == lease.Holder() {
					t.Errorf("token %d for %s after %d for %s", next.Token(), next.Holder(), lease.Token(), lease.Holder())
				}
				if lease.Fence().String() != "orders=1" || next.Fence().String() != "orders=2" {
					t.Errorf("fences %s, then %s", lease.Fence(), next.Fence())
				}
			})
		})
	}
}

func TestADeadHolderIsSucceededWhenItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		if _, err := store.Acquire(t.Context(), "orders", "dead", ttl); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		acquire(t, newClient(t, store, lockclient.Options{}))
		if waited := time.Since(start); waited < ttl || waited > ttl+2*time.Millisecond {
			t.Errorf("waited %v", waited)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		lease := acquire(t, client)
		waiter := make(chan error, 1)
		go func() {
			_, err := client.Acquire(t.Context(), "orders")
			waiter <- err
		}()
		synctest.Wait()
		for range 2 {
			if err := client.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := <-waiter; !errors.Is(err, lockclient.ErrClosed) {
			t.Errorf("waiter: %v", err)
		}
		wantEnd(t, lease, lockclient.ErrReleased)
		if store.holder("orders") != "" {
			t.Errorf("held by %q", store.holder("orders"))
		}
		if _, err := client.TryAcquire(t.Context(), "orders"); !errors.Is(err, lockclient.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestCloseHeedsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		acquire(t, client)
		store.script(hanging("release"), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := client.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// A repeated request for one grant, whose first answer was lost, gets the grant.
func TestAnIDThatComesAgainIsTheSameGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		try := func(id string) (*lockclient.Lease, error) {
			return newClient(t, store, lockclient.Options{}).TryAcquire(t.Context(), "orders", lockclient.WithHolder("worker-1"), lockclient.WithID(id))
		}
		first, err := try("17")
		if err != nil || first.GrantID() != "worker-1/17" {
			t.Fatal(first, err)
		}
		if again, err := try("17"); err != nil || again.Holder() != first.Holder() || again.Token() <= first.Token() {
			t.Errorf("the second is %v, %v, the first %q with %d", again, err, first.Holder(), first.Token())
		}
		if other, err := try("18"); other != nil {
			t.Errorf("another id wins, too: %v", err)
		}
	})
}

// Within a client a repeated request waits: giving the first back would release the second.
func TestARepeatedIDWaitsUntilTheFirstIsOver(t *testing.T) {
	with := []lockclient.AcquireOption{lockclient.WithHolder("worker-1"), lockclient.WithID("17")}
	for name, c := range map[string]struct {
		end  func(*lockclient.Lease) // after a second; nil if the first acquire fails
		over time.Duration
	}{
		"given back": {nil, 4 * time.Second}, // answers to the acquire and the release take 2s each
		"released":   {func(l *lockclient.Lease) { _ = l.Release(context.Background()) }, 3 * time.Second},
		"detached":   {func(l *lockclient.Lease) { _, _ = l.Detach() }, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				store.script(nil, func(_ context.Context, call string) error {
					if call == "release" || call == "acquire" && c.end == nil {
						<-time.After(2 * time.Second)
					}
					return nil
				})
				client := newClient(t, store, lockclient.Options{})
				began := time.Now()
				within := func(limit time.Duration) (*lockclient.Lease, error) {
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					defer cancel()
					return client.TryAcquire(ctx, "orders", with...)
				}
				first, err := within(500 * time.Millisecond)
				if (c.end == nil) != (err != nil) {
					t.Fatal(first, err)
				}
				if c.end != nil {
					time.AfterFunc(time.Second, func() { c.end(first) })
				}
				if again, err := within(200 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the first isn't over: %v, %v", again, err)
				}
				again, err := client.TryAcquire(t.Context(), "orders", with...)
				if took := time.Since(began); err != nil || took < c.over {
					t.Fatalf("%v, %v after %v", again, err, took)
				}
				if holder := store.holder("orders"); holder != lockclient.HolderOf("worker-1/17") || again.Err() != nil {
					t.Errorf("held by %q, %v", holder, again.Err())
				}
			})
		})
	}
}

// What an acquire asks for holds for its lease alone.
func TestOptionsOfAnAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{Holder: "usual", TTL: time.Hour})
		var renewed atomic.Int64
		store.script(func(_ context.Context, call string) error {
			if call == "renew" {
				renewed.Add(1)
			}
			return nil
		}, nil)
		own, err := client.Acquire(t.Context(), "orders", lockclient.WithTTL(3*time.Second), lockclient.WithHolder("own"))
		if err != nil {
			t.Fatal(err)
		}
		if own.Remaining().Round(time.Second) != 3*time.Second || !strings.HasPrefix(own.Holder(), "own/") {
			t.Errorf("%v for %s", own.Remaining(), own.Holder())
		}
		<-time.After(time.Minute)
		if n := renewed.Load(); n < 50 || own.Err() != nil {
			t.Errorf("renewed %d times in 60s, %v", n, own.Err())
		}
		if usual, err := client.TryAcquire(t.Context(), "others"); err != nil || usual.Remaining().Round(time.Second) != time.Hour || !strings.HasPrefix(usual.Holder(), "usual/") {
			t.Errorf("%v, %v", usual, err)
		}
		for _, wrong := range []lockclient.AcquireOption{lockclient.WithTTL(time.Millisecond), lockclient.WithHolder("a\nb"), lockclient.WithID(strings.Repeat("x", 40))} {
			if lease, err := client.TryAcquire(t.Context(), "wrong", wrong); err == nil {
				t.Error(lease)
			}
		}
	})
}
