package lockclient

import (
	"context"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Revocation is what a Revoke has done.
type Revocation struct {
	// Token is the new last token, which is nobody's: lower ones are stale.
	Token fence.Token
	// LockedOut is the grant that was recorded last, whose holder is "" if none
	// was recorded.
	LockedOut fence.Grant
	// Ended are the transactions that held the resource, which are no more.
	Ended []fence.Ended
	// Freed is the holder who had the lease in the store and has it no more, "" if
	// nobody had it or it isn't known who.
	Freed string
	// NotFreed is why a lease that may be there was not freed; nil if there was
	// none or it was freed. It ends by itself, or when its holder learns of the
	// revocation.
	NotFreed error
}

// revokePatience is how long a store is given that may be what is amiss.
const revokePatience = 3 * time.Second

// Revoke locks the present holder of a resource out at once: no write with its
// token can be committed any more when it returns. Then it frees the holder's lease
// in the store, so that another can have it, if the store is a Looker. The history has
// the reason, unless it is "". The role must have wirefence_issuer.
//
// A lease that is won meanwhile may be the one that is revoked, and stay in the
// store; its holder learns of it by its next renewal.
func Revoke(ctx context.Context, database fence.Querier, store Store, resource fence.Resource, reason string) (Revocation, error) {
	last, err := fence.LastGrant(ctx, database, resource)
	if err != nil {
		return Revocation{}, err
	}
	var seen Attempt
	looker, looks := store.(Looker)
	if looks {
		within, cancel := context.WithTimeout(ctx, revokePatience)
		seen, err = looker.Look(within, resource)
		cancel()
	}
	r := Revocation{LockedOut: last, NotFreed: err}
	// The lock-out comes first: once the lease is free, another may be granted it.
	if r.Token, r.Ended, err = fence.RevokeEnding(ctx, database, resource, reason); err != nil {
		return Revocation{}, err
	}
	if seen.Holder == "" {
		return r, nil
	}
	within, cancel := context.WithTimeout(ctx, revokePatience)
	defer cancel()
	// That it was not held any more says that the store heard of the revocation.
	if _, r.NotFreed = store.Release(within, resource, seen.Holder); r.NotFreed == nil {
		r.Freed = seen.Holder
	}
	return r, nil
}
