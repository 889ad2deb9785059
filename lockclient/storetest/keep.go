package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/wirefence/wirefence/lockclient"
)

// renewOtherwise renews leases with other ttls than they had.
func (s suite) renewOtherwise(t *testing.T) {
	t.Parallel() // with keep, behind the others
	for name, c := range map[string]struct{ first, second time.Duration }{
		"longer":  {500 * time.Millisecond, 2500 * time.Millisecond},
		"shorter": {1500 * time.Millisecond, short},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := s.session(t)
			x.win("a", c.first)
			before := time.Now()
			if held, err := x.store.Renew(x.ctx, x.resource, "a", c.second); !held || err != nil {
				t.Fatal(held, err)
			}
			x.winAfterExpiry("b")
			if elapsed := time.Since(before); elapsed < c.second {
				t.Errorf("a lease that was renewed for %v expired after %v", c.second, elapsed)
			}
			x.wantRenew("a", false)
		})
	}
}

// keep has a client leave a lease taken, or refuse to on a store that can't.
func (s suite) keep(t *testing.T) {
	t.Parallel()
	x := s.session(t)
	opts := lockclient.Options{Unsealed: true, TTL: time.Second, KeepFor: 2500 * time.Millisecond, Holder: "first"}
	client, err := lockclient.New(x.store, opts)
	if transient, ok := x.store.(lockclient.Transient); ok && transient.EndsWithProcess() {
		if !errors.Is(err, lockclient.ErrTransient) {
			t.Errorf("a client that can't keep a lease: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	lease, err := client.Acquire(x.ctx, x.resource)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lease.Keep(x.ctx), lease.Release(x.ctx), client.Close(x.ctx)); err != nil {
		t.Fatal(err)
	}
	attempt := x.acquire("b", long)
	if attempt.Won() || attempt.Holder != lease.Holder() {
		t.Fatalf("a kept lease: %+v", attempt)
	}
	if token := x.winAfterExpiry("b"); token <= lease.Token() {
		t.Errorf("token %d after %d", token, lease.Token())
	}
	if elapsed := time.Since(before); elapsed < opts.KeepFor {
		t.Errorf("a lease was kept for %v, not %v", elapsed, opts.KeepFor)
	}
}
