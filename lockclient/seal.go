package lockclient

import (
	"context"
	"fmt"

	"github.com/wirefence/wirefence/fence"
)

// Sealer records grants in the database that judges writes.
type Sealer interface {
	// Seal records the grant and reports whether the token was higher than every token
	// recorded before. Once it has returned true, no write with a lower token can
	// commit.
	Seal(ctx context.Context, resource fence.Resource, token fence.Token, holder string) (bool, error)
	// LastToken returns the highest token recorded for the resource, 0 if there is none.
	LastToken(ctx context.Context, resource fence.Resource) (fence.Token, error)
}

// Record is implemented by every Store that seals by itself, and by a Sealer that can
// report its last grant. Through it a holder learns that it was revoked, or which holder
// succeeded it.
type Record interface {
	// LastGrant returns the grant with the highest token that was recorded for the
	// resource: token 0 if there is none, no holder if a revocation recorded that token.
	LastGrant(ctx context.Context, resource fence.Resource) (fence.Grant, error)
}

// Sealed reports whether the grants of a store are sealed: by a sealer, which may be nil,
// or by the store itself.
func Sealed(store Store, sealer Sealer) bool {
	_, itself := store.(Record)
	return sealer != nil || itself
}

// sealRounds bounds the number of seals whose token is too low. One further round is
// enough for a store that lost its counter; more are needed only while others seal or
// revoke the same resource.
const sealRounds = 8

// seal records the grant. If the counter of the store was behind, seal raises it and gets
// a greater token for the lease. It returns the sealed lease.
func (c *Client) seal(ctx context.Context, lease *Lease) (*Lease, error) {
	for range sealRounds {
		last, err := c.sealOnce(ctx, lease)
		if err != nil {
			if ctx.Err() != nil {
				return nil, contextError(ctx, "sealing the lease of", lease.resource)
			}
			return nil, &SealError{lease.resource, lease.token, err}
		}
		if last == 0 {
			return lease, nil
		}
		c.logBehind(ctx, lease, last)
		if lease, err = c.acquireHigher(ctx, lease, last); err != nil {
			return nil, err
		}
	}
	return nil, &SealError{lease.resource, lease.token, fmt.Errorf("another token was recorded meanwhile, %d times", sealRounds)}
}

// logBehind logs that a token was too low. After a revocation that is normal; otherwise
// the store has lost its counter, or others seal the resource, too.
func (c *Client) logBehind(ctx context.Context, lease *Lease, last fence.Token) {
	log := c.opts.Logger.With("resource", lease.resource, "counted", lease.token, "sealed", last)
	if record, ok := c.opts.Sealer.(Record); ok {
		if grant, err := record.LastGrant(ctx, lease.resource); err == nil && grant.Holder == "" && grant.Token == last {
			log.Debug("the lease store's token counter is raised past a revocation")
			return
		}
	}
	log.Warn("the lease store's token counter is behind")
}

// sealOnce returns 0 if the lease was sealed, otherwise the token that the next one must
// exceed. It takes no longer than the lease lasts.
func (c *Client) sealOnce(ctx context.Context, lease *Lease) (last fence.Token, err error) {
	left := lease.left(c.opts.now())
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	sealed, err := c.opts.Sealer.Seal(ctx, lease.resource, lease.token, lease.holder)
	if err != nil || sealed {
		return 0, storeError(err, left)
	}
	last, err = c.opts.Sealer.LastToken(ctx, lease.resource)
	return max(last, lease.token), storeError(err, left)
}

// acquireHigher gets a token above last for the lease.
func (c *Client) acquireHigher(ctx context.Context, lease *Lease, last fence.Token) (*Lease, error) {
	left := lease.left(c.opts.now())
	raiseCtx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	if err := c.store.Raise(raiseCtx, lease.resource, last); err != nil {
		if ctx.Err() != nil {
			return nil, contextError(ctx, "sealing the lease of", lease.resource)
		}
		return nil, storeError(err, left)
	}
	return c.win(ctx, lease.resource, lease.holder, lease.opts)
}
