package lockclient

import (
	"context"
	"time"
)

// clockCheck is how often a lease compares the clocks between renewals, so that
// it ends soon after the machine wakes from a sleep past the deadline.
const clockCheck = time.Second

// keep renews the lease until it ends.
func (l *Lease) keep() {
	defer close(l.kept)
	defer l.client.forget(l)
	pauses := l.client.opts.backoff()
	every := around(l.client.opts.RenewEvery)
	due := every - l.client.opts.now().since(l.born)
	timer := time.NewTimer(min(due, clockCheck))
	defer timer.Stop()
	for asleep := l.client.opts.now(); ; asleep = l.client.opts.now() {
		timer.Reset(max(0, min(due, clockCheck)))
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			return
		}
		if l.Err() != nil {
			return
		}
		if due -= l.client.opts.now().since(asleep); due > 0 {
			continue
		}
		sent := l.client.opts.now()
		if l.renew(sent) {
			pauses = l.client.opts.backoff()
			due = around(l.client.opts.RenewEvery) - l.client.opts.now().since(sent)
		} else {
			due = pauses.pause()
		}
	}
}

// renew asks the store once, within half of what the lease has left so that
// another try fits in, and reports whether the lease was renewed. An answer
// that comes after the end of the lease changes nothing.
func (l *Lease) renew(sent moment) bool {
	l.mu.Lock()
	l.asking = true
	patience := l.left(sent) / 2
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	held, err := l.client.store.Renew(ctx, l.resource, l.holder, l.client.opts.TTL)
	cancel()

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.checkLocked(l.client.opts.now()) != nil {
		return false
	}
	l.asking = false
	if err != nil {
		l.failure = storeError(err, patience)
		l.client.opts.Logger.Warn("lease not renewed", "resource", l.resource, "token", l.token, "error", l.failure)
		return false
	}
	if !held {
		l.endLocked(ErrLost, nil)
		return false
	}
	l.sent, l.failure = sent, nil
	return l.checkLocked(l.client.opts.now()) == nil
}
