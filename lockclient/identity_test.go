package lockclient_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wirefence/wirefence/lockclient"
)

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
