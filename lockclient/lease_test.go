package lockclient_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wirefence/wirefence/lockclient"
)

func TestMain(m *testing.M) { os.Exit(suite.Run(m)) }

const (
	ttl    = 15 * time.Second
	margin = 3 * time.Second
)

var errDown = errors.New("store down")

func newClient(t testing.TB, store lockclient.Store, opts lockclient.Options) *lockclient.Client {
	t.Helper()
	opts.Unsealed = true // which changes nothing where there is a sealer
	client, err := lockclient.New(store, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			t.Logf("close: %v", err)
		}
	})
	return client
}

func acquire(t testing.TB, client *lockclient.Client) *lockclient.Lease {
	t.Helper()
	lease, err := client.Acquire(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// wantEnd waits for the end of the lease and returns how long that took.
func wantEnd(t testing.TB, lease *lockclient.Lease, reason error) time.Duration {
	t.Helper()
	start := time.Now()
	<-lease.Context().Done()
	cause := context.Cause(lease.Context())
	for _, each := range []error{lockclient.ErrExpired, lockclient.ErrLost, lockclient.ErrRevoked, lockclient.ErrFailover, lockclient.ErrReleased, lockclient.ErrKept, lockclient.ErrDetached, lockclient.ErrMaxHold, lockclient.ErrUnreachable} {
		if got := errors.Is(cause, each); got != (each == reason) {
			t.Errorf("cause %q is %q: %v", cause, each, got)
		}
	}
	if err := lease.Err(); err != cause {
		t.Errorf("Err is %v, the context's cause %v", err, cause)
	}
	return time.Since(start)
}

// failing makes one kind of call fail.
func failing(name string, err error) func(context.Context, string) error {
	return func(_ context.Context, call string) error {
		if call == name {
			return err
		}
		return nil
	}
}

// hanging makes one kind of call hang.
func hanging(name string) func(context.Context, string) error {
	return func(ctx context.Context, call string) error {
		if call != name {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

func TestRenewalKeepsALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		lease, err := client.Acquire(ctx, "orders")
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-lease.Context().Done():
			t.Fatalf("ended: %v", lease.Err())
		case <-time.After(time.Hour):
		}
		if store.holder("orders") != lease.Holder() || lease.Err() != nil {
			t.Fatalf("held by %q, %v", store.holder("orders"), lease.Err())
		}
		if left := lease.Remaining(); left <= margin || left > ttl {
			t.Errorf("%v remain", left)
		}
		for range 2 {
			release(t, lease)
		}
		wantEnd(t, lease, lockclient.ErrReleased)
		if store.holder("orders") != "" || lease.Remaining() != 0 {
			t.Errorf("still held by %q for %v", store.holder("orders"), lease.Remaining())
		}
	})
}

func TestRenewalsAreAThirdOfTheTTLApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		last := time.Now()
		var pauses []time.Duration // until the lease is released
		store.script(func(_ context.Context, call string) error {
			if call == "renew" {
				pauses = append(pauses, time.Since(last))
				last = time.Now()
			}
			return nil
		}, nil)
		lease := acquire(t, newClient(t, store, lockclient.Options{}))
		<-time.After(100 * ttl / 3)
		release(t, lease)
		if len(pauses) < 90 || len(pauses) > 111 {
			t.Errorf("%d renewals", len(pauses))
		}
		slices.Sort(pauses)
		shortest, longest := pauses[0], pauses[len(pauses)-1]
		if shortest < ttl/3-ttl/30 || longest > ttl/3+ttl/30 || longest-shortest < ttl/30 {
			t.Errorf("%v to %v apart", shortest, longest)
		}
	})
}

func TestALeaseEndsAMarginBeforeTheStoreFreesIt(t *testing.T) {
	slow := func(_ context.Context, call string) error {
		if call == "acquire" {
			<-time.After(4 * time.Second)
		}
		return nil
	}
	for _, c := range []struct {
		name   string
		script func(*memory)
	}{
		{"failing", func(m *memory) { m.script(failing("renew", errDown), nil) }},
		{"hanging", func(m *memory) { m.script(hanging("renew"), nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				store.script(nil, slow) // the answer comes 4s after the store began to count
				client := newClient(t, store, lockclient.Options{})
				asked := time.Now()
				lease := acquire(t, client)
				c.script(store)
				wantEnd(t, lease, lockclient.ErrUnreachable)
				if held := time.Since(asked); held != ttl-margin {
					t.Errorf("ended %v after the request left", held)
				}
				if store.holder("orders") != lease.Holder() || lease.Remaining() != margin {
					t.Errorf("held by %q, %v remain", store.holder("orders"), lease.Remaining())
				}
				if c.name == "failing" && !errors.Is(lease.Err(), errDown) {
					t.Errorf("%v does not wrap the store's error", lease.Err())
				}
				if errors.Is(lease.Err(), context.DeadlineExceeded) {
					t.Errorf("%v passes for a caller's timeout", lease.Err())
				}
			})
		})
	}
}

func TestAFailedRenewalIsRetriedWithinTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		lease := acquire(t, client)
		store.script(failing("renew", errDown), nil)
		<-time.After(11 * time.Second)
		store.script(nil, nil)
		<-time.After(time.Minute)
		if lease.Err() != nil {
			t.Error(lease.Err())
		}
	})
}

func TestALateAnswerBringsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		lease := acquire(t, client)
		store.script(nil, func(_ context.Context, call string) error {
			if call == "renew" { // heeds no context, and answers that all is well
				<-time.After(ttl)
			}
			return nil
		})
		wantEnd(t, lease, lockclient.ErrUnreachable)
		<-time.After(ttl)
		wantEnd(t, lease, lockclient.ErrUnreachable)
	})
}

func TestALostLeaseEndsAtTheNextRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		lease := acquire(t, client)
		store.forget()
		rival := acquire(t, newClient(t, store, lockclient.Options{}))
		if took := wantEnd(t, lease, lockclient.ErrLost); took > ttl/3+ttl/30 {
			t.Errorf("noticed after %v", took)
		}
		if lease.Remaining() != 0 {
			t.Errorf("%v remain", lease.Remaining())
		}
		release(t, lease)
		if store.holder("orders") != rival.Holder() {
			t.Errorf("held by %q", store.holder("orders"))
		}
	})
}

func TestMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{MaxHold: time.Minute})
		lease := acquire(t, client)
		if held := wantEnd(t, lease, lockclient.ErrMaxHold); held != time.Minute {
			t.Errorf("held %v", held)
		}
		if left := lease.Remaining(); left < margin {
			t.Errorf("%v remain to stop in", left)
		}
		if err := lease.Release(t.Context()); err != nil || store.holder("orders") != "" {
			t.Errorf("held by %q after release: %v", store.holder("orders"), err)
		}
	})
}

func TestASuspendedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asleep atomic.Int64 // while the monotonic clock stood still
		start := time.Now()
		boot := func() time.Duration { return time.Since(start) + time.Duration(asleep.Load()) }
		store := newMemory()
		client := newClient(t, store, lockclient.Options{}.WithBootClock(boot))

		lease := acquire(t, client)
		synctest.Wait()
		asleep.Add(int64(ttl))
		if took := wantEnd(t, lease, lockclient.ErrExpired); took > time.Second {
			t.Errorf("noticed after %v", took)
		}
		if lease.Remaining() != 0 {
			t.Errorf("%v remain", lease.Remaining())
		}
		release(t, lease)
		lease = acquire(t, client)
		synctest.Wait()
		asleep.Add(int64(ttl))
		if !errors.Is(lease.Err(), lockclient.ErrExpired) {
			t.Errorf("Err does not read the clock: %v", lease.Err())
		}

		lease, err := client.Acquire(t.Context(), "kept")
		if err != nil {
			t.Fatal(err)
		}
		for range 5 { // not long enough to lose it, but long enough to be late
			<-time.After(4 * time.Second)
			asleep.Add(int64(6 * time.Second))
			<-time.After(time.Second)
			if left := lease.Remaining(); lease.Err() != nil || left < ttl-time.Second {
				t.Fatalf("not renewed on waking: %v remain, %v", left, lease.Err())
			}
		}
	})
}

func TestReleaseThatFailsCanBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		lease := acquire(t, client)
		store.script(failing("release", errDown), nil)
		if err := lease.Release(t.Context()); !errors.Is(err, errDown) {
			t.Error(err)
		}
		wantEnd(t, lease, lockclient.ErrReleased)
		store.script(hanging("release"), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := lease.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		store.script(nil, nil)
		if err := lease.Release(t.Context()); err != nil || store.holder("orders") != "" {
			t.Errorf("held by %q after release: %v", store.holder("orders"), err)
		}
	})
}

func TestADetachedLeaseIsAnothersToKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := newClient(t, store, lockclient.Options{})
		lease := acquire(t, client)
		<-time.After(4 * time.Second)
		left, err := lease.Detach()
		if err != nil || left != ttl-4*time.Second {
			t.Errorf("%v left, %v", left, err)
		}
		wantEnd(t, lease, lockclient.ErrDetached)
		if _, err := lease.Detach(); !errors.Is(err, lockclient.ErrDetached) {
			t.Errorf("detached twice: %v", err)
		}
		if err := errors.Join(lease.Release(t.Context()), client.Close(t.Context())); err != nil {
			t.Error(err)
		}
		if store.holder("orders") != lease.Holder() || lease.Remaining() != 0 {
			t.Errorf("held by %q, %v remain", store.holder("orders"), lease.Remaining())
		}
		<-time.After(left - time.Nanosecond)
		if held, err := store.Renew(t.Context(), lease.Resource(), lease.GrantID(), ttl); !held || err != nil {
			t.Errorf("kept by another: %v, %v", held, err)
		}
	})
}

func TestAnEndedLeaseCannotBeDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t, newMemory(), lockclient.Options{})
		lease := acquire(t, client)
		release(t, lease)
		if left, err := lease.Detach(); left != 0 || !errors.Is(err, lockclient.ErrReleased) {
			t.Errorf("%v left, %v", left, err)
		}
	})
}
