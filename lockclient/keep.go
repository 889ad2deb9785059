package lockclient

import (
	"context"
	"time"
)

// Keep ends the lease when its work has succeeded, and leaves it taken in the store until
// Options.KeepFor after its grant: another process with the same schedule then finds it taken,
// rather than free again after a short work. The store alone keeps the lease; neither Options.TTL
// nor Options.MaxHold limits the time, and an operator frees it by `wirefence revoke`. If that
// time has passed, or the lease has ended before, Keep is Release.
//
// The context of the lease ends with ErrKept, Remaining is 0, and Release leaves the lease alone,
// so that a deferred Release does no harm. A second call of Keep does nothing if the first
// succeeded; otherwise it tries again. A lease that Keep couldn't keep expires by itself, a TTL
// after its last renewal. Keep waits for a renewal that is under way, whose shorter ttl would
// count if it arrived later.
func (l *Lease) Keep(ctx context.Context) error {
	if !l.endKept(ctx) {
		return l.Release(ctx)
	}
	return l.giveUp(ctx, l.keep)
}

// endKept ends the lease to be kept, and reports whether it is. It is false if KeepFor has
// passed or the lease has ended for another reason.
func (l *Lease) endKept(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.checkLocked(l.opts.now()) == nil && l.keepLeft() > 0 {
		if l.asking == nil || ctx.Err() != nil {
			l.endLocked(ErrKept, nil)
			break
		}
		answered := l.asking
		l.mu.Unlock()
		select {
		case <-answered:
		case <-l.ctx.Done():
		case <-ctx.Done():
		}
		l.mu.Lock()
	}
	return l.ended != nil && l.ended.Reason == ErrKept
}

// keepLeft returns how long the lease is still to be kept.
func (l *Lease) keepLeft() time.Duration { return l.opts.KeepFor - l.opts.now().since(l.grantedAt) }

// keep leaves the lease taken in the store for the rest of KeepFor. A lease whose holder is
// locked out is freed: it protects nothing. As free, it gives up after one TTL.
func (l *Lease) keep(ctx context.Context) error {
	left := l.keepLeft()
	if left <= 0 {
		return l.free(ctx)
	}
	ttl := l.opts.TTL
	storeCtx, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	held, err := l.client.store.Renew(storeCtx, l.resource, l.id, left)
	log := l.opts.Logger.With("resource", l.resource, "token", l.token)
	switch {
	case ctx.Err() != nil:
		return contextError(ctx, "keeping the lease of", l.resource)
	case err != nil:
		log.Warn("cannot keep lease, it will expire", "error", err)
		return storeError(err, ttl)
	case !held:
		log.Warn("lease not kept, the store no longer has it")
		return nil
	}
	if len(l.opts.Sealers) > 0 { // a store that seals by itself refuses to renew a revoked lease
		grants, err := LastGrants(storeCtx, l.client.store, l.opts.Sealers, l.resource, held)
		if err != nil {
			log.Warn("cannot compare lease with the last grant", "error", err)
		}
		if end := l.compared(grants, held); end != nil {
			log.Warn("lease not kept", "reason", end)
			return l.free(ctx)
		}
	}
	log.Debug("lease kept", "until", time.Now().Add(left))
	return nil
}

// keepableIn reports whether a store can do what KeepFor asks for.
func (o *Options) keepableIn(store Store) bool {
	transient, ok := store.(Transient)
	return o.KeepFor == 0 || !ok || !transient.EndsWithProcess()
}
