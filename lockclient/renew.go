package lockclient

import (
	"context"
	"slices"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// renewUntilEnd renews the lease until it ends; the first renewal is due at this age.
func (l *Lease) renewUntilEnd(age time.Duration) {
	defer close(l.stopped)
	pauses := l.opts.backoff()
	last, due := l.acquiredAt, age // renew when due has passed since last
	timer := time.NewTimer(0)
	defer timer.Stop()
	var jumped <-chan struct{}
	for {
		select {
		case <-timer.C:
		case <-jumped:
		case <-l.ctx.Done():
			return
		}
		if l.Err() != nil {
			return
		}
		if now := l.opts.now(); now.since(last) >= due {
			if l.renew(now) {
				pauses = l.opts.backoff()
				last, due = now, withJitter(l.opts.RenewEvery)
			} else {
				last, due = l.opts.now(), pauses.pause()
			}
		}
		jumped = l.client.jump() // before the clocks are read
		timer.Reset(due - l.opts.now().since(last))
	}
}

// renew asks the store once, within half of the remaining time so that another try fits
// in, and reports whether the lease was renewed. An answer after the end of the lease
// changes nothing.
func (l *Lease) renew(sent moment) bool {
	l.mu.Lock()
	l.asking = make(chan struct{})
	timeout := l.left(sent) / 2
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	held, err := l.client.store.Renew(ctx, l.resource, l.id, l.opts.TTL)
	cancel()
	if !l.recordAnswer(sent, held, storeError(err, timeout)) {
		return false
	}
	if held && len(l.opts.Sealers) == 0 {
		return true // a store that seals by itself refuses to renew a revoked lease
	}
	return l.compareGrant(held)
}

// recordAnswer records the answer to a renewal, and reports whether it came in time.
func (l *Lease) recordAnswer(sent moment, held bool, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.checkLocked(l.opts.now()) != nil {
		return false
	}
	close(l.asking)
	l.asking = nil
	if err != nil {
		l.failure = err
		l.opts.Logger.Warn("cannot renew lease", "resource", l.resource, "token", l.token, "error", err)
		return false
	}
	if held {
		l.sent, l.failure = sent, nil
	}
	return l.checkLocked(l.opts.now()) == nil
}

// compareGrant ends the lease if the store no longer has it, if a database has recorded a
// higher token, or if one no longer has this token; it reports whether the lease is still
// held. Databases that do not answer have no say.
func (l *Lease) compareGrant(held bool) bool {
	grants, err := l.lastGrants(held)
	if err != nil {
		l.opts.Logger.Warn("cannot compare lease with the last grant", "resource", l.resource, "token", l.token, "error", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.checkLocked(l.opts.now()) != nil {
		return false
	}
	end := l.compared(grants, held)
	if end == nil {
		return true
	}
	if end.lockedOut() {
		l.freeAfterMargin(held)
	}
	l.endWith(end)
	return false
}

// compared returns why the lease is lost by the last recorded grants; nil if it isn't.
func (l *Lease) compared(grants []fence.Grant, held bool) *EndError {
	end := &EndError{Resource: l.resource, Token: l.token, Reason: ErrLost}
	differs := slices.IndexFunc(grants, func(last fence.Grant) bool { return last.Former || last.Token != l.token })
	switch {
	case differs < 0 && held:
		return nil
	case differs < 0:
	case grants[differs].Former || grants[differs].Token < l.token:
		end.Reason = ErrFailover
	default:
		end.Successor = grants[differs]
		if end.Successor.Holder == "" {
			end.Reason = ErrRevoked
		}
	}
	return end
}

// causeTimeout bounds the delay before a lease that the store no longer has ends;
// meanwhile the client asks for the cause.
const causeTimeout = 500 * time.Millisecond

// lastGrants asks for the last recorded grants, within a part of the remaining time. The
// error is of those that did not answer.
func (l *Lease) lastGrants(held bool) ([]fence.Grant, error) {
	o := l.opts
	l.mu.Lock()
	timeout := min(l.left(o.now()), o.RenewEvery) / 2
	l.mu.Unlock()
	if !held {
		timeout = min(timeout, o.Margin/2, causeTimeout)
	}
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	grants, err := LastGrants(ctx, l.client.store, o.Sealers, l.resource, held)
	return grants, storeError(err, timeout)
}

// freeAfterMargin frees a lease in the store that is about to end because its holder is locked
// out: after the margin that the holder has to stop, when the client is closed, or at
// once if the store no longer has the lease. The caller holds mu and is one of the
// client's counted goroutines.
func (l *Lease) freeAfterMargin(held bool) {
	var margin time.Duration
	if held {
		margin = l.opts.Margin
	}
	l.freeBy = l.opts.now().since(l.acquiredAt) + margin
	ctx := context.WithoutCancel(l.ctx)
	l.client.running.Go(func() {
		timer := time.NewTimer(margin)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.client.closing:
		}
		_ = l.Release(ctx) // logs its failure
	})
}
