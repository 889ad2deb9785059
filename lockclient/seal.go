package lockclient

import (
	"context"
	"errors"
	"fmt"
	"sync"

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

// Sealed reports whether the grants of a store are sealed: by sealers, or by the store
// itself.
func Sealed(store Store, sealers ...Sealer) bool {
	_, itself := store.(Record)
	return len(sealers) > 0 || itself
}

// together calls do for each of n databases at the same time, and returns when all calls
// have. For a single one it needs no goroutine.
func together(n int, do func(i int)) {
	var others sync.WaitGroup
	for i := 1; i < n; i++ {
		others.Go(func() { do(i) })
	}
	if n > 0 {
		do(0)
	}
	others.Wait()
}

// LastGrants returns the last grants of the resource that the sealers have recorded, and an
// error of those that can't be read. A store that seals by itself is asked only if it no longer
// has the lease, for the reason: otherwise it would refuse to renew one that was superseded.
func LastGrants(ctx context.Context, store Store, sealers []Sealer, resource fence.Resource, held bool) (grants []fence.Grant, err error) {
	var records []Record
	if itself, ok := store.(Record); ok && !held {
		records = append(records, itself)
	}
	for _, sealer := range sealers {
		record, ok := sealer.(Record)
		if !ok {
			record = nameless{sealer}
		}
		records = append(records, record)
	}
	answers, errs := make([]fence.Grant, len(records)), make([]error, len(records))
	together(len(records), func(i int) { answers[i], errs[i] = records[i].LastGrant(ctx, resource) })
	for i, last := range answers {
		if errs[i] == nil {
			grants = append(grants, last)
		}
	}
	return grants, joined(errs)
}

// nameless is the Record of a Sealer that can't report the holder.
type nameless struct{ Sealer }

func (n nameless) LastGrant(ctx context.Context, resource fence.Resource) (fence.Grant, error) {
	last, err := n.LastToken(ctx, resource)
	return fence.Grant{Resource: resource, Token: last, Holder: "another"}, err
}

// sealRounds bounds the number of seals whose token is too low. One further round is
// enough for a store that lost its counter; more are needed only while others seal or
// revoke the same resource.
const sealRounds = 8

// seal records the grant in all databases. If the counter of the store was behind that of
// any, seal raises it and gets a greater token for the lease. It returns the sealed lease.
//
// Each database seals by itself and holds no lock behind that, so two clients that seal the
// same resource can't block each other. If one has sealed and another has not, the token is
// lost: nobody gets it, and where it is sealed it locks out former holders alone.
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
	for _, sealer := range c.opts.Sealers {
		if record, ok := sealer.(Record); ok {
			if grant, err := record.LastGrant(ctx, lease.resource); err == nil && grant.Holder == "" && grant.Token == last {
				log.Debug("the lease store's token counter is raised past a revocation")
				return
			}
		}
	}
	log.Warn("the lease store's token counter is behind")
}

// sealOnce returns 0 if the lease was sealed everywhere, otherwise the token that the next
// one must exceed. It takes no longer than the lease lasts. The first database that fails ends
// the wait of the others: there is no grant, and no transaction must be ended for it.
func (c *Client) sealOnce(ctx context.Context, lease *Lease) (last fence.Token, err error) {
	left := lease.left(c.opts.now())
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	var mu sync.Mutex
	var errs []error
	together(len(c.opts.Sealers), func(i int) {
		behind, err := sealIn(ctx, c.opts.Sealers[i], lease)
		mu.Lock()
		defer mu.Unlock()
		last = max(last, behind)
		if err != nil && (len(errs) == 0 || !errors.Is(err, context.Canceled)) {
			errs = append(errs, storeError(err, left))
			cancel()
		}
	})
	return last, joined(errs)
}

// sealIn is sealOnce in one database.
func sealIn(ctx context.Context, sealer Sealer, lease *Lease) (last fence.Token, err error) {
	sealed, err := sealer.Seal(ctx, lease.resource, lease.token, lease.holder)
	if err != nil || sealed {
		return 0, err
	}
	if record, ok := sealer.(Record); ok {
		grant, err := record.LastGrant(ctx, lease.resource)
		if err == nil && grant.Token == lease.token && grant.Holder == lease.holder && !grant.Former {
			return 0, nil // by the store itself, or by another sealer of the same database
		}
		return max(grant.Token, lease.token), err
	}
	last, err = sealer.LastToken(ctx, lease.resource)
	return max(last, lease.token), err
}

// joined is errors.Join on one line. A single error stays as it is.
func joined(errs []error) (all error) {
	for _, err := range errs {
		switch {
		case err == nil:
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
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
	return c.win(ctx, lease.resource, lease.id, lease.opts)
}
