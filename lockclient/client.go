// Package lockclient acquires leases with fencing tokens: an acquire wins the lease in a
// store, gets a token that is greater than any before, seals it in PostgreSQL, and
// returns.
//
// A store decides who holds a resource and until when. PostgreSQL decides whether a write
// is accepted, by the token that the write carries: a Lease sets its fence on a
// connection, in a transaction or in a statement.
//
// The package imports package fence and a PostgreSQL driver for these helpers. It does
// not import any store; the stores are in the packages below it.
package lockclient

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Client acquires leases in a store. It is safe for concurrent use.
type Client struct {
	store Store
	opts  Options

	closing chan struct{} // closed by Close
	workers workers
	running sync.WaitGroup
	mu      sync.Mutex // locked after a lease's, if both are
	closed  bool
	leases  map[*Lease]struct{} // the held ones
	queues  map[fence.Resource]*acquireQueue
	streaks streaks
	claims  sync.Map // by resource and grant: a chan struct{}, closed when another may use the id

	watching bool          // a call of compareClocks is scheduled
	compared moment        // when compareClocks last found a jump
	jumped   chan struct{} // closed at the next jump
}

// New makes a client on a store. The caller still owns the store: Close ends the client's
// leases and goroutines, then the caller may close the store. The error is ErrUnsealed if
// nothing would seal the grants and Options.Unsealed does not permit that, and ErrTransient if
// the store can't do what Options.KeepFor asks for.
func New(store Store, opts Options) (*Client, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("lock client options: %w", err)
	}
	if !opts.Unsealed && !Sealed(store, opts.Sealers...) {
		return nil, ErrUnsealed
	}
	if !opts.keepableIn(store) {
		return nil, ErrTransient
	}
	return &Client{
		store: store, opts: opts.withDefaults(),
		closing: make(chan struct{}), workers: workers{jobs: make(chan func())},
		leases: map[*Lease]struct{}{}, queues: map[fence.Resource]*acquireQueue{},
		jumped: make(chan struct{}),
	}, nil
}

// Acquire waits until the lease is won or ctx ends; then it leaves no lease behind. An
// error of the store or of the seal ends the wait, also for the client's other acquires
// of the resource.
//
// Within one client the acquires of a resource are served in the order of the calls, and
// only the first asks the store. Between clients there is no order: after each release
// every waiting client may win, and so may a new one.
func (c *Client) Acquire(ctx context.Context, resource fence.Resource, with ...AcquireOption) (*Lease, error) {
	o, err := c.options(resource, with)
	if err != nil {
		return nil, err
	}
	l, place := c.join(resource)
	return l.acquire(ctx, place, o)
}

// TryAcquire tries once, whether others wait or not. If another holder has the lease, the
// error is a *HeldError, which is an ErrNotAcquired.
//
// It returns as soon as ctx or the client ends. A goroutine that Close waits for then
// gives back the lease that the store may still grant. With a ctx that can't end, such as
// context.Background, it returns when the store answers. It needs no goroutine then,
// which saves a fifth of the time if the store is near.
func (c *Client) TryAcquire(ctx context.Context, resource fence.Resource, with ...AcquireOption) (*Lease, error) {
	o, err := c.options(resource, with)
	if err != nil {
		return nil, err
	}
	return c.tryAcquire(ctx, resource, o)
}

// options returns those of an acquire.
func (c *Client) options(resource fence.Resource, with []AcquireOption) (*Options, error) {
	if _, err := fence.ParseResource(string(resource)); err != nil {
		return nil, err
	}
	if len(with) == 0 {
		return &c.opts, nil
	}
	o := c.opts
	for _, set := range with {
		set(&o)
	}
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("options of the acquire: %w", err)
	}
	if !o.keepableIn(c.store) {
		return nil, ErrTransient
	}
	o = o.withDefaults()
	return &o, nil
}

func (c *Client) tryAcquire(ctx context.Context, resource fence.Resource, o *Options) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, contextError(ctx, "acquiring the lease of", resource)
	}
	if !c.begin() {
		return nil, ErrClosed
	}
	if ctx.Done() == nil { // ctx can't end, so no goroutine is needed
		defer c.running.Done()
		return c.grant(ctx, resource, o)
	}
	type outcome struct {
		lease *Lease
		err   error
	}
	outcomes := make(chan outcome)
	c.do(func() {
		lease, err := c.grant(ctx, resource, o)
		select {
		case outcomes <- outcome{lease, err}:
			return
		case <-ctx.Done():
		case <-c.closing:
		}
		if lease != nil {
			_ = lease.Release(context.WithoutCancel(ctx)) // logs its failure
		}
	})
	select {
	case out := <-outcomes:
		return out.lease, out.err
	case <-ctx.Done():
		return nil, contextError(ctx, "acquiring the lease of", resource)
	case <-c.closing:
		return nil, ErrClosed
	}
}

// grant wins and seals a lease. It returns early if ctx ends, but waits for the store's
// answer: only then can the outcome be undone.
func (c *Client) grant(ctx context.Context, resource fence.Resource, o *Options) (*Lease, error) {
	id := o.Holder + "/" + cmp.Or(o.id, rand.Text())
	disclaim, err := c.claim(ctx, resource, id, o)
	if err != nil {
		return nil, err
	}
	lease, err := c.win(ctx, resource, id, o)
	if errors.Is(err, ErrNotAcquired) {
		disclaim()
		return nil, err
	}
	if err != nil { // the store may have granted the lease nevertheless
		c.running.Go(func() {
			defer disclaim()
			c.giveBack(ctx, resource, id, o.TTL, "lease state unknown after a failed acquire, and release failed; a granted lease will expire")
		})
		return nil, err
	}
	if len(c.opts.Sealers) > 0 {
		lease, err = c.seal(ctx, lease)
	}
	if err == nil {
		lease.disclaim = disclaim
		err = c.start(ctx, lease)
	}
	if err != nil {
		defer disclaim()
		c.giveBack(ctx, resource, id, o.TTL, "cannot release lease, it will expire")
		return nil, err
	}
	c.opts.Logger.Debug("lease acquired", "resource", resource, "token", lease.token, "holder", lease.holder)
	return lease, nil
}

// win asks the store for the lease or, if the grant already has it, for a greater token.
func (c *Client) win(ctx context.Context, resource fence.Resource, id string, o *Options) (*Lease, error) {
	sent := o.now()
	usable := o.TTL - o.Margin
	storeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), usable)
	defer cancel()
	attempt, err := c.store.Acquire(storeCtx, resource, id, o.TTL)
	switch {
	case ctx.Err() != nil:
		return nil, contextError(ctx, "acquiring the lease of", resource)
	case err != nil:
		return nil, storeError(err, usable)
	case !attempt.Won():
		return nil, &HeldError{resource, attempt.Holder, max(0, attempt.Remaining)}
	}
	return newLease(c, o, resource, attempt.Token, id, sent), nil
}

// start begins the life of a new lease. If it fails, it ends the lease.
func (c *Client) start(ctx context.Context, lease *Lease) error {
	if ctx.Err() != nil {
		return contextError(ctx, "acquiring the lease of", lease.resource)
	}
	if err := lease.start(ctx); err != nil {
		return fmt.Errorf("the acquire took longer than the lease lasts: %w", err)
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.leases[lease] = struct{}{}
		if l := c.queues[lease.resource]; l != nil {
			l.granted.Store(lease.holder)
		}
		c.watch()
	}
	c.mu.Unlock()
	if closed {
		lease.end(ErrReleased)
		return ErrClosed
	}
	if lease.Err() != nil { // it ended before it was in c.leases
		c.forget(lease)
	}
	return nil
}

// giveBack releases what a failed acquire has won, or may have won. If it fails, it logs
// the message failed; the lease then expires.
func (c *Client) giveBack(ctx context.Context, resource fence.Resource, id string, ttl time.Duration, failed string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl)
	defer cancel()
	if _, err := c.store.Release(ctx, resource, id); err != nil {
		c.opts.Logger.Warn(failed, "resource", resource, "holder", HolderOf(id), "error", err)
	}
}

// claim waits until no other acquire or lease of this client uses the id, if one was given: an
// acquire that fails releases whatever has its id.
func (c *Client) claim(ctx context.Context, resource fence.Resource, grant string, o *Options) (disclaim func(), err error) {
	if o.id == "" {
		return func() {}, nil
	}
	id, over := [2]string{string(resource), grant}, make(chan struct{})
	for {
		other, claimed := c.claims.LoadOrStore(id, over)
		if !claimed {
			return sync.OnceFunc(func() { c.claims.Delete(id); close(over) }), nil
		}
		select {
		case <-other.(chan struct{}):
		case <-c.closing:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, contextError(ctx, "acquiring the lease of", resource)
		}
	}
}

// begin counts a further goroutine that Close waits for. It returns false if the client
// is closed.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Add(1)
	return true
}

func (c *Client) forget(lease *Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.leases, lease)
}

func (c *Client) heldLocked() []*Lease {
	held := make([]*Lease, 0, len(c.leases))
	for lease := range c.leases {
		held = append(held, lease)
	}
	return held
}

// Close ends waiting acquires with ErrClosed, releases every lease, and returns when all
// goroutines of the client have ended, or with the error of the context. It may be called
// more than once.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.closing)
		for _, l := range c.queues {
			if l.idleTimer != nil {
				l.idleTimer.Stop()
				l.remove()
			}
		}
	}
	held := c.heldLocked()
	c.mu.Unlock()

	errs := make([]error, len(held))
	var releases sync.WaitGroup
	for i, lease := range held {
		releases.Go(func() { errs[i] = lease.Release(ctx) })
	}
	releases.Wait()
	ended := make(chan struct{})
	go func() {
		c.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return errors.Join(errs...)
	case <-ctx.Done():
		return errors.Join(append(errs, fmt.Errorf("closing the lock client: %w", ctx.Err()))...)
	}
}
