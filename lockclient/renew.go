package lockclient

import (
	"context"
	"time"
)

// clockCheck is how often a lease compares the clocks between renewals, so that
// it ends soon after the machine wakes from a sleep past the deadline.
const clockCheck = time.Second

// keep renews the lease until it ends, for the first time at an age.
func (l *Lease) keep(age time.Duration) {
	defer close(l.kept)
	pauses := l.client.opts.backoff()
	last, due := l.born, age // renew when due has passed since last
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			return
		}
		if l.Err() != nil {
			return
		}
		if now := l.client.opts.now(); now.since(last) >= due {
			if l.renew(now) {
				pauses = l.client.opts.backoff()
				last, due = now, around(l.client.opts.RenewEvery)
			} else {
				last, due = l.client.opts.now(), pauses.pause()
			}
		}
		timer.Reset(min(due-l.client.opts.now().since(last), clockCheck))
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
