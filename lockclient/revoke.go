package lockclient

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Revocation is the result of Revoke.
type Revocation struct {
	// Databases has what was done in each of the databases, in their order.
	Databases []Revoked
	// Freed is the holder whose lease was freed in the store, "" if nobody had a lease
	// or the holder is unknown.
	Freed string
	// NotFreed is why an existing lease may not have been freed; nil if there was none
	// or it was freed. It ends by itself, or when its holder learns of the revocation.
	NotFreed error
}

// Revoked is a revocation in one database.
type Revoked struct {
	// Database is the PostgresSealer's Server.
	Database string
	// Token is the new last token, which nobody was granted: lower tokens are stale.
	Token fence.Token
	// LockedOut is the grant that was recorded last; its holder is "" if none was
	// recorded.
	LockedOut fence.Grant
	// Ended lists the backends that held the resource and were terminated.
	Ended []fence.Ended
	// Err is why the holder may not be locked out there; nil if it is.
	Err error
}

// revokeTimeout bounds each request to the store, which may be the part that has failed.
const revokeTimeout = 3 * time.Second

// Revoke locks the present holder of a resource out of all databases at once: when it
// returns, no write with its token can commit where the revocation has no error. The error of
// Revoke joins those of the databases, which name them; then call it again. If any database
// locked the holder out and the store is a Looker, Revoke frees the holder's lease in the
// store, so that another can acquire it. The history records the reason unless it is "". The
// roles must have wirefence_issuer.
//
// If another client wins the lease meanwhile, Revoke may lock out that client and leave
// its lease in the store; its holder learns of it by its next renewal.
func Revoke(ctx context.Context, databases []PostgresSealer, store Store, resource fence.Resource, reason string) (Revocation, error) {
	var seen Attempt
	r := Revocation{Databases: make([]Revoked, len(databases))}
	looker, looks := store.(Looker)
	if looks {
		within, cancel := context.WithTimeout(ctx, revokeTimeout)
		seen, r.NotFreed = looker.Look(within, resource)
		cancel()
	}
	// The lock-out comes first: once the lease is free, another may be granted it.
	errs := make([]error, len(databases))
	together(len(databases), func(i int) {
		r.Databases[i] = databases[i].revoke(ctx, resource, reason)
		errs[i] = r.Databases[i].Err
	})
	err := joined(errs)
	if seen.Holder == "" || !slices.Contains(errs, nil) {
		return r, err
	}
	within, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	// If the holder no longer has it, its client has freed it because of the revocation.
	if _, r.NotFreed = looker.Free(within, resource, seen.Holder); r.NotFreed == nil {
		r.Freed = seen.Holder
	}
	return r, err
}

// revoke is Revoke in one database.
func (s PostgresSealer) revoke(ctx context.Context, resource fence.Resource, reason string) Revoked {
	r := Revoked{Database: s.server()}
	if r.LockedOut, r.Err = s.LastGrant(ctx, resource); r.Err != nil {
		return r
	}
	if r.Token, r.Ended, r.Err = fence.RevokeEnding(ctx, s.Querier, resource, reason); r.Err != nil {
		r.Err = fmt.Errorf("%s: %w", s.where(), r.Err)
	}
	return r
}
