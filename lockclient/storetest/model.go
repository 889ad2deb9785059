package storetest

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// model compares random calls by a few holders with the contract of lockclient.Store, on
// leases that do not expire meanwhile.
func (s suite) model(t *testing.T) {
	store := s.open(t)
	rapid.Check(t, func(r *rapid.T) {
		x := session{t, store, t.Context(), fence.Resource(fmt.Sprint("storetest model ", sessions.Add(1)))}
		var holder string
		var last fence.Token
		who := rapid.SampledFrom([]string{"a", "b", "c"})
		r.Repeat(map[string]func(*rapid.T){
			"acquire": func(r *rapid.T) {
				by := who.Draw(r, "by")
				attempt := x.acquire(by, long)
				if free := holder == "" || holder == by; attempt.Won() != free {
					r.Fatalf("%s: %+v while held by %q", by, attempt, holder)
				}
				if !attempt.Won() {
					if attempt.Holder != lockclient.HolderOf(holder) {
						r.Fatalf("held by %q, want %q", attempt.Holder, holder)
					}
					return
				}
				if attempt.Token <= last {
					r.Fatalf("token %d after %d", attempt.Token, last)
				}
				holder, last = by, attempt.Token
			},
			"renew": func(r *rapid.T) {
				by := who.Draw(r, "by")
				x.wantRenew(by, holder == by)
			},
			"release": func(r *rapid.T) {
				by := who.Draw(r, "by")
				x.wantRelease(by, holder == by)
				if holder == by {
					holder = ""
				}
			},
			"raise": func(r *rapid.T) {
				to := fence.Token(rapid.Int64Range(1, 1<<60).Draw(r, "to"))
				if err := x.store.Raise(x.ctx, x.resource, to); err != nil {
					r.Fatal(err)
				}
				last = max(last, to)
			},
		})
	})
}
