package lockclient_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wirefence/wirefence/lockclient"
)

const keepFor = 10 * time.Minute

func keep(t testing.TB, lease *lockclient.Lease) {
	t.Helper()
	if err := lease.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// wantTaken checks that the lease stays taken in the store for so long from now on, and no longer.
func wantTaken(t testing.TB, store *memory, lease *lockclient.Lease, left time.Duration) {
	t.Helper()
	<-time.After(left - time.Nanosecond)
	if store.holder("orders") != lease.Holder() {
		t.Errorf("held by %q before %v have passed", store.holder("orders"), left)
	}
	<-time.After(time.Nanosecond)
	if store.holder("orders") != "" {
		t.Errorf("held by %q after %v", store.holder("orders"), left)
	}
}

func TestAKeptLeaseStaysTakenUntilItsTimeBehindTheGrant(t *testing.T) {
	for name, c := range map[string]struct{ keepFor, work time.Duration }{
		"beyond the ttl and the maximum hold": {keepFor, 20 * time.Second},
		"within the ttl":                      {6 * time.Second, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				store.script(nil, func(_ context.Context, call string) error {
					if call == "acquire" {
						<-time.After(2 * time.Second) // the time counts from the answer
					}
					return nil
				})
				client := newClient(t, store, lockclient.Options{MaxHold: time.Minute})
				lease, err := client.Acquire(t.Context(), "orders", lockclient.WithKeepFor(c.keepFor))
				if err != nil {
					t.Fatal(err)
				}
				<-time.After(c.work)
				keep(t, lease)
				wantEnd(t, lease, lockclient.ErrKept)
				keep(t, lease)
				release(t, lease)
				if err := client.Close(t.Context()); err != nil || lease.Remaining() != 0 {
					t.Errorf("%v, %v remain", err, lease.Remaining())
				}
				wantTaken(t, store, lease, c.keepFor-c.work)
			})
		})
	}
}

func TestKeepReleases(t *testing.T) {
	for name, c := range map[string]struct {
		opts   lockclient.Options
		work   time.Duration
		reason error
	}{
		"without KeepFor":          {lockclient.Options{}, time.Second, lockclient.ErrReleased},
		"when KeepFor has passed":  {lockclient.Options{KeepFor: keepFor}, keepFor, lockclient.ErrReleased},
		"what has ended otherwise": {lockclient.Options{KeepFor: keepFor, MaxHold: time.Second}, 2 * time.Second, lockclient.ErrMaxHold},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				lease := acquire(t, newClient(t, store, c.opts))
				<-time.After(c.work)
				keep(t, lease)
				wantEnd(t, lease, c.reason)
				if store.holder("orders") != "" {
					t.Errorf("held by %q", store.holder("orders"))
				}
			})
		})
	}
}

func TestALostLeaseIsNotKept(t *testing.T) {
	for _, name := range []string{"of which the store knows", "of which the database alone knows", "that has ended"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, sealer, heldBy := newMemory(), &record{}, ""
				lease := acquire(t, newClient(t, store, lockclient.Options{KeepFor: keepFor, Sealers: []lockclient.Sealer{sealer}}))
				if name == "of which the database alone knows" {
					sealer.last["orders"]++
				} else {
					store.forget()
					heldBy = acquire(t, newClient(t, store, lockclient.Options{})).Holder()
				}
				if name == "that has ended" {
					wantEnd(t, lease, lockclient.ErrLost)
				}
				keep(t, lease)
				if store.holder("orders") != heldBy {
					t.Errorf("held by %q", store.holder("orders"))
				}
			})
		})
	}
}

func TestKeepThatFailsCanBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		lease := acquire(t, newClient(t, store, lockclient.Options{KeepFor: keepFor}))
		store.script(failing("renew", errDown), nil)
		if err := lease.Keep(t.Context()); !errors.Is(err, errDown) {
			t.Error(err)
		}
		wantEnd(t, lease, lockclient.ErrKept)
		store.script(hanging("renew"), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := lease.Keep(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		store.script(nil, nil)
		keep(t, lease)
		wantTaken(t, store, lease, keepFor-time.Second)
	})
}

// A store may do what a renewal asks for although nobody waits for its answer any more.
func TestARenewalUnderWayDoesNotShortenAKeptLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, asked := newMemory(), make(chan struct{})
		lease := acquire(t, newClient(t, store, lockclient.Options{KeepFor: keepFor}))
		began := time.Now()
		store.script(func(_ context.Context, call string) error {
			if call == "renew" {
				store.script(nil, nil)
				close(asked)
				<-time.After(2 * time.Second)
			}
			return nil
		}, nil)
		<-asked
		keep(t, lease)
		wantTaken(t, store, lease, keepFor-time.Since(began))
	})
}

// While a renewal is under way, the end of its context ends Keep, and Keep the lease.
func TestKeepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		lease := acquire(t, newClient(t, store, lockclient.Options{KeepFor: keepFor}))
		store.script(hanging("renew"), nil)
		<-time.After(ttl/3 + ttl/30)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := lease.Keep(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		wantEnd(t, lease, lockclient.ErrKept)
	})
}

// transient is a store whose leases end with their process.
type transient struct{ *memory }

func (transient) EndsWithProcess() bool { return true }

func TestKeepForIsRefusedWhereItCannotBe(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{-1, 366*24*time.Hour + 1} {
		if err := (lockclient.Options{KeepFor: d}).Validate(); err == nil {
			t.Errorf("KeepFor %v is valid", d)
		}
	}
	store := transient{newMemory()}
	if _, err := lockclient.New(store, lockclient.Options{Unsealed: true, KeepFor: 1}); !errors.Is(err, lockclient.ErrTransient) {
		t.Error(err)
	}
	client := newClient(t, store, lockclient.Options{})
	if _, err := client.TryAcquire(t.Context(), "orders", lockclient.WithKeepFor(1)); !errors.Is(err, lockclient.ErrTransient) {
		t.Error(err)
	}
	keep(t, acquire(t, client))
}
