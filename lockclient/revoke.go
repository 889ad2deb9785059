package lockclient

import (
	"context"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Revocation is the result of Revoke.
type Revocation struct {
	// Token is the new last token, which nobody was granted: lower tokens are stale.
	Token fence.Token
	// LockedOut is the grant that was recorded last; its holder is "" if none was
	// recorded.
	LockedOut fence.Grant
	// Ended lists the backends that held the resource and were terminated.
	Ended []fence.Ended
	// Freed is the holder whose lease was freed in the store, "" if nobody had a lease
	// or the holder is unknown.
	Freed string
	// NotFreed is why an existing lease may not have been freed; nil if there was none
	// or it was freed. It ends by itself, or when its holder learns of the revocation.
	NotFreed error
}

// revokeTimeout bounds each request to the store, which may be the part that has failed.
const revokeTimeout = 3 * time.Second

// Revoke locks the present holder of a resource out at once: when it returns, no write
// with its token can commit. Then, if the store is a Looker, Revoke frees the holder's
// lease in the store, so that another can acquire it. The history records the reason
// unless it is "". The role must have wirefence_issuer.
//
// If another client wins the lease meanwhile, Revoke may lock out that client and leave
// its lease in the store; its holder learns of it by its next renewal.
func Revoke(ctx context.Context, database fence.Querier, store Store, resource fence.Resource, reason string) (Revocation, error) {
	last, err := fence.LastGrant(ctx, database, resource)
	if err != nil {
		return Revocation{}, err
	}
	var seen Attempt
	looker, looks := store.(Looker)
	if looks {
		within, cancel := context.WithTimeout(ctx, revokeTimeout)
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
	within, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	// If the holder no longer has it, its client has freed it because of the revocation.
	if _, r.NotFreed = store.Release(within, resource, seen.Holder); r.NotFreed == nil {
		r.Freed = seen.Holder
	}
	return r, nil
}
