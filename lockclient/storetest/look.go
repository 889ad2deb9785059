package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/wirefence/wirefence/lockclient"
)

// look tests a store that is a lockclient.Looker.
func (s suite) look(t *testing.T) {
	x := s.session(t)
	looker, ok := x.store.(lockclient.Looker)
	if !ok {
		return
	}
	want := func(holder string, ttl time.Duration) {
		t.Helper()
		if holder != "" {
			holder = lockclient.HolderOf(holder)
		}
		seen, err := looker.Look(x.ctx, x.resource)
		if err != nil || seen.Won() || seen.Holder != holder || seen.Remaining > ttl || (seen.Remaining > 0) != (ttl > 0) {
			t.Errorf("a look shows %+v, %v, want %q for up to %v", seen, err, holder, ttl)
		}
	}
	want("", 0)
	x.win("a", long)
	want("a", long)
	x.wantRenew("a", true)
	x.wantRelease("a", true)
	want("", 0)
	x.win("b", short)
	for start := time.Now(); time.Since(start) < 10*time.Second; {
		if seen, err := looker.Look(x.ctx, x.resource); err != nil || seen.Holder == "" {
			break
		}
		<-time.After(short) // a store may keep a lease for longer than its ttl
	}
	want("", 0)
	x.win("c", long)
	want("c", long)
	if _, itself := x.store.(lockclient.Record); !itself { // there a revocation frees the lease
		if held, err := looker.Free(x.ctx, x.resource, lockclient.HolderOf("b")); held || err != nil {
			t.Errorf("freed for another: %v, %v", held, err)
		}
		if held, err := looker.Free(x.ctx, x.resource, lockclient.HolderOf("c")); !held || err != nil {
			t.Errorf("not freed: %v, %v", held, err)
		}
		want("", 0)
	}

	ctx, cancel := context.WithCancel(x.ctx)
	cancel()
	if _, err := looker.Look(ctx, x.resource); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}
