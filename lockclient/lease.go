package lockclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Lease is one grant: the exclusive use of a resource until its context ends. A goroutine
// of its own renews it. It is safe for concurrent use.
//
// A program that continues to write after the context has ended is a zombie; PostgreSQL
// refuses its writes if they carry the fence.
type Lease struct {
	client     *Client
	opts       *Options // of its acquire
	resource   fence.Resource
	token      fence.Token
	id         string // of the grant, a secret
	holder     string
	acquiredAt moment // before the request of the acquire was sent
	grantedAt  moment // when the acquire returned
	disclaim   func() // lets other acquires use the id

	due time.Duration // the age of the first renewal

	ctx     context.Context
	cancel  context.CancelCauseFunc
	stopped chan struct{} // closed when the lease and its goroutine have ended

	mu       sync.Mutex
	sent     moment        // before the last confirmed request was sent
	freeBy   time.Duration // the age at which the client frees a lease whose holder was locked out
	timer    *time.Timer   // starts the renewing goroutine, then ends the lease
	renewing bool          // the renewing goroutine was started
	ended    *EndError     // nil while held
	asking   chan struct{} // closed at the answer to a renewal; nil while none waits for its answer
	failure  error         // of the last renewal, nil if it succeeded

	releasing chan struct{} // holds one element while nobody is in Release
	freed     bool          // owned by the holder of that element
}

func newLease(c *Client, o *Options, resource fence.Resource, token fence.Token, id string, sent moment) *Lease {
	l := &Lease{
		client: c, opts: o, resource: resource, token: token, id: id, holder: HolderOf(id), acquiredAt: sent, sent: sent,
		stopped: make(chan struct{}), releasing: make(chan struct{}, 1),
	}
	l.releasing <- struct{}{}
	return l
}

// start creates the context of the lease, with the values of ctx but not its end, and its
// timer. It fails if the deadline has passed.
//
// The renewing goroutine starts when the first renewal is due: most leases are released
// before. The caller is one of the client's counted goroutines until the lease is in
// Client.leases.
func (l *Lease) start(ctx context.Context) error {
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.opts.now()
	l.grantedAt = now
	elapsed := now.since(l.acquiredAt)
	due := withJitter(l.opts.RenewEvery) - elapsed
	l.due = elapsed + due
	l.timer = time.AfterFunc(min(due, l.left(now)), l.recheck)
	if left := l.left(now); left <= 0 {
		l.endLocked(ErrExpired, nil)
		return l.ended
	}
	return nil
}

// recheck ends the lease if its deadline has passed; otherwise it starts the renewing
// goroutine.
func (l *Lease) recheck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.checkLocked(l.opts.now()) == nil && !l.renewing {
		l.renewing = true
		l.client.running.Go(func() { l.renewUntilEnd(l.due) })
	}
}

// Resource returns the resource of the lease.
func (l *Lease) Resource() fence.Resource { return l.resource }

// Token returns the token of this grant. It never changes, also after the lease has
// ended.
func (l *Lease) Token() fence.Token { return l.token }

// Holder returns the name of this grant's holder, which others see: HolderOf(GrantID()). It
// begins with Options.Holder.
func (l *Lease) Holder() string { return l.holder }

// String names the resource and the token alone, so that no log of a lease has the grant's id.
func (l *Lease) String() string { return fmt.Sprintf("lease of %q with token %d", l.resource, l.token) }

// GrantID returns the id by which Store.Renew and Store.Release know this grant. It is a secret:
// anybody who has it can renew and release the lease.
func (l *Lease) GrantID() string { return l.id }

// Fence returns the fence of this grant. It goes into a session, a transaction or a statement,
// and is checked there, by its own methods: fence.Fence.Session and the others. The fences of
// several leases can be merged.
//
// Like the token it stays the same after the lease has ended: a statement without a fence might
// not be refused. Send it under the lease's Context, so that an ended lease begins no new work.
func (l *Lease) Fence() fence.Fence {
	f, err := fence.New(fence.Pair{Resource: l.resource, Token: l.token, Source: l.opts.Source})
	if err != nil {
		panic(fmt.Sprintf("lockclient: lease of %q with token %d: %v", l.resource, l.token, err)) // both were checked
	}
	return f
}

// Context ends with the lease, at least Options.Margin before the store can grant the
// resource to another; context.Cause returns an *EndError that says why. It has the
// values of the acquire's context and outlives that context.
func (l *Lease) Context() context.Context { return l.ctx }

// Err returns nil while the lease is held, otherwise why it ended. It reads the clocks,
// so it is right even in a process that was stopped or suspended a moment ago, when the
// context has not ended yet.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.checkLocked(l.opts.now()); err != nil {
		return err
	}
	return nil
}

// Remaining returns for how long nobody else can get the lease: the time until the
// store's expiry, which is Options.Margin after the end of the context. After a
// revocation or a failover it is at most Options.Margin; then the client frees the
// resource. It is 0 if the lease was lost, released, kept or detached.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil && (l.ended.isOthers() || l.ended.Reason == ErrReleased) {
		return 0
	}
	return l.remainingLocked(l.opts.now())
}

func (l *Lease) remainingLocked(now moment) time.Duration {
	left := l.opts.TTL - now.since(l.sent)
	if l.ended != nil && l.ended.lockedOut() {
		left = min(left, l.freeBy-now.since(l.acquiredAt))
	}
	return max(0, left)
}

// left returns how long the context lasts without a renewal.
func (l *Lease) left(now moment) time.Duration {
	o := l.opts
	left := o.TTL - o.Margin - now.since(l.sent)
	if o.MaxHold != NoMaxHold {
		left = min(left, o.MaxHold-now.since(l.acquiredAt))
	}
	return left
}

// checkLocked ends the lease if its deadline has passed; otherwise it resets the timer.
// The caller holds mu.
func (l *Lease) checkLocked(now moment) *EndError {
	if l.ended != nil {
		return l.ended
	}
	if left := l.left(now); left > 0 {
		if l.renewing {
			l.timer.Reset(left)
		}
		return nil
	}
	o := l.opts
	switch {
	case o.MaxHold != NoMaxHold && now.since(l.acquiredAt) >= o.MaxHold:
		l.endLocked(ErrMaxHold, nil)
	case l.failure != nil:
		l.endLocked(ErrUnreachable, l.failure)
	case l.asking != nil:
		l.endLocked(ErrUnreachable, errors.New("no answer to a renewal"))
	default:
		l.endLocked(ErrExpired, nil)
	}
	return l.ended
}

// end ends the lease if it is held, and returns why it ended.
func (l *Lease) end(reason error) *EndError {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.endLocked(reason, nil)
	}
	return l.ended
}

// endLocked ends a lease that is held. The caller holds mu.
func (l *Lease) endLocked(reason, last error) {
	l.endWith(&EndError{Resource: l.resource, Token: l.token, Reason: reason, Last: last})
}

func (l *Lease) endWith(ended *EndError) {
	l.ended = ended
	l.timer.Stop()
	l.cancel(l.ended)
	l.client.forget(l)
	if !l.renewing {
		close(l.stopped)
	}
	log := l.opts.Logger.Warn
	if ended.Reason == ErrReleased || ended.Reason == ErrKept || ended.Reason == ErrDetached {
		log = l.opts.Logger.Debug
	}
	log("lease ended", "resource", l.resource, "token", l.token, "holder", l.holder, "reason", l.ended)
}

// Detach ends the lease in this process and leaves it in the store, for another process
// to keep: with Resource, Token and GrantID that process renews it by Store.Renew and
// frees it by Store.Release. Detach returns, as Remaining does, for how long nobody else
// can get the lease if it is not renewed. Options.MaxHold no longer applies.
//
// It does not wait for a renewal in progress, which may still restart the ttl. If the
// lease has ended, it returns the *EndError.
func (l *Lease) Detach() (remaining time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.opts.now()
	if err := l.checkLocked(now); err != nil {
		return 0, err
	}
	l.endLocked(ErrDetached, nil)
	l.disclaim()
	return l.remainingLocked(now), nil
}

// Release ends the lease and frees the resource unless another holder has it. It returns
// when the goroutine of the lease, if any, has ended. A second call does nothing if the
// first succeeded; otherwise it tries again. Release leaves a kept or detached lease alone.
func (l *Lease) Release(ctx context.Context) error {
	if l.end(ErrReleased).isOthers() {
		return l.giveUp(ctx, func(context.Context) error { return nil })
	}
	return l.giveUp(ctx, l.free)
}

// giveUp gives up a lease that has ended here, in the store by last. It returns when the
// goroutine of the lease, if any, has ended.
func (l *Lease) giveUp(ctx context.Context, last func(context.Context) error) error {
	select {
	case <-l.releasing:
		defer func() {
			l.disclaim()
			l.releasing <- struct{}{}
		}()
	case <-ctx.Done():
		return contextError(ctx, "releasing the lease of", l.resource)
	}
	if !l.freed {
		if err := last(ctx); err != nil {
			return err
		}
	}
	l.freed = true
	select {
	case <-l.stopped:
		return nil
	case <-ctx.Done():
		return contextError(ctx, "releasing the lease of", l.resource)
	}
}

// free deletes the lease in the store. It gives up after one TTL, when the lease has
// expired.
func (l *Lease) free(ctx context.Context) error {
	ttl := l.opts.TTL
	storeCtx, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	held, err := l.client.store.Release(storeCtx, l.resource, l.id)
	switch {
	case err == nil:
		l.opts.Logger.Debug("lease released", "resource", l.resource, "token", l.token, "was_held", held)
		return nil
	case ctx.Err() != nil:
		return contextError(ctx, "releasing the lease of", l.resource)
	}
	l.opts.Logger.Warn("cannot release lease, it will expire", "resource", l.resource, "token", l.token, "error", err)
	return storeError(err, ttl)
}
