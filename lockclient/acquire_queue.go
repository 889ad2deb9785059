package lockclient

import (
	"container/list"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// acquireQueue is the queue of one client's acquires of one resource. Only the first asks the
// store, so a release does not cause a try by each of them; the others follow in the
// order of their calls.
//
// The first passes on what it has learned: the subscription, the pause between tries, and
// that the resource is held.
type acquireQueue struct {
	client   *Client
	resource fence.Resource

	// Guarded by the client's mu.
	waiting   list.List   // of chan error, for each acquire
	failed    bool        // all acquires in waiting have failed
	idleTimer *time.Timer // removes an empty queue

	granted atomic.Value // the holder of the client's last grant

	// Owned by the first acquire of the queue.
	held      *HeldError // the last answer of the store; nil: ask at once
	returning bool       // the client acquires again what others may be waiting for
	released  chan struct{}
	stop      func() // ends the notices; nil before the first wait
	pauses    backoff
	rivals    rivals
}

// join appends an acquire to the queue of its resource. The channel gets nil when the
// acquire becomes the first, or the error that ended the wait of the whole queue.
func (c *Client) join(resource fence.Resource) (*acquireQueue, *list.Element) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.queues[resource]
	if l == nil {
		l = &acquireQueue{client: c, resource: resource, pauses: c.opts.backoff()}
		c.queues[resource] = l
	}
	turn := make(chan error, 1)
	if l.waiting.Len() == 0 {
		l.returning = c.streaks.giveWay(resource, c.opts.RetryMax)
		if l.idleTimer != nil {
			l.idleTimer.Stop()
			l.idleTimer, l.held, l.returning = nil, nil, true
		}
		turn <- nil
	}
	return l, l.waiting.PushBack(turn)
}

// leave removes an acquire from the queue. If it was the first, the next becomes the
// first; but if it failed for a reason that is not its own, all fail with it rather than
// one after the other.
func (l *acquireQueue) leave(place *list.Element, failed error) {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	if l.failed {
		return
	}
	first := l.waiting.Front() == place
	l.waiting.Remove(place)
	if !first {
		return
	}
	if failed != nil {
		l.failed = true
		for each := l.waiting.Front(); each != nil; each = each.Next() {
			each.Value.(chan error) <- failed
		}
		l.remove()
		return
	}
	switch {
	case l.waiting.Len() > 0:
		l.waiting.Front().Value.(chan error) <- nil
	case l.rivals.count() > 0 && !l.client.closed:
		l.keepIdle()
	default:
		l.remove()
	}
}

// keepIdle keeps an empty queue for a while, so that the client remembers its rivals when it
// returns, and need not subscribe again. The caller holds mu.
func (l *acquireQueue) keepIdle() {
	var timer *time.Timer
	timer = time.AfterFunc(l.client.opts.RetryMax, func() {
		l.client.mu.Lock()
		defer l.client.mu.Unlock()
		if l.idleTimer == timer {
			l.remove()
		}
	})
	l.idleTimer = timer
}

// remove removes the queue. The caller holds mu.
func (l *acquireQueue) remove() {
	l.idleTimer = nil
	delete(l.client.queues, l.resource)
	if l.stop != nil {
		l.stop()
	}
}

// acquire waits until it is the first, and then for the lease.
func (l *acquireQueue) acquire(ctx context.Context, place *list.Element, o *Options) (lease *Lease, err error) {
	var failed error
	defer func() { l.leave(place, failed) }()
	select {
	case err := <-place.Value.(chan error):
		if err != nil {
			return nil, err
		}
	case <-l.client.closing:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, contextError(ctx, "waiting for the lease of", l.resource)
	}
	lease, err = l.tryUntilWon(ctx, o)
	// Others may have the time that this acquire hadn't, if it is shorter than usual.
	short := o.TTL < l.client.opts.TTL && errors.As(err, new(*ownTimeout))
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) && !short {
		failed = err
	}
	return lease, err
}

// tryUntilWon tries until the lease is won. Only the first of the queue calls it.
func (l *acquireQueue) tryUntilWon(ctx context.Context, o *Options) (*Lease, error) {
	if l.returning {
		l.returning = false
		if _, err := l.sleep(ctx, giveWay+l.rivals.spread(), nil); err != nil {
			return nil, err
		}
	}
	for {
		if l.held != nil {
			if err := l.wait(ctx); err != nil {
				l.held = nil // the notice that ended the wait may be lost with it
				return nil, err
			}
		}
		lease, err := l.client.tryAcquire(ctx, l.resource, o)
		if held := (*HeldError)(nil); errors.As(err, &held) {
			l.held = held
			l.rivals.note(held.Holder, held.Holder == l.granted.Load())
			continue
		}
		l.held = nil
		if err == nil {
			l.held = &HeldError{Resource: l.resource, Holder: lease.holder}
			l.rivals.note(lease.holder, true)
		}
		return lease, err
	}
}

// wait returns nil when it is time to try again: after a pause, a release, or
// the end of the other's lease, whichever is first.
func (l *acquireQueue) wait(ctx context.Context) error {
	if l.stop == nil {
		l.listen(ctx)
	}
	spread := l.rivals.spread()
	pause := l.pauses.pause()
	if l.held.Remaining > 0 {
		pause = min(pause, l.held.Remaining+time.Millisecond+spread)
	}
	woken, err := l.sleep(ctx, pause, l.released)
	if woken && spread > 0 {
		_, err = l.sleep(ctx, spread, nil)
	}
	return err
}

// sleep waits for a time to pass or for a notice, and reports which came first.
func (l *acquireQueue) sleep(ctx context.Context, pause time.Duration, released <-chan struct{}) (woken bool, err error) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, nil
	case <-released:
		return true, nil
	case <-l.client.closing:
		return false, ErrClosed
	case <-ctx.Done():
		return false, contextError(ctx, "waiting for the lease of", l.resource)
	}
}

// listen subscribes to notices of releases. The subscription outlives ctx: the others in
// the queue need it.
func (l *acquireQueue) listen(ctx context.Context) {
	l.released, l.stop = make(chan struct{}, 1), func() {}
	notifier, ok := l.client.store.(Notifier)
	if !ok {
		return
	}
	stop, err := notifier.Notify(context.WithoutCancel(ctx), l.resource, l.released)
	if err != nil {
		l.client.opts.Logger.Debug("waiting by polling", "resource", l.resource, "error", err)
		return
	}
	l.stop = stop
}
