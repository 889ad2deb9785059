// Package campaign keeps a process leader or standby: it holds the lease of one resource while
// it can, and waits while another process has it.
//
// The package imports lockclient, fence and internal/quietlog.
package campaign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/quietlog"
	"github.com/wirefence/wirefence/lockclient"
)

// Options of a Campaign. The zero value of a field means its default.
type Options struct {
	// Client acquires the lease. Required. The caller closes it, which releases the lease and
	// ends the campaign.
	Client *lockclient.Client
	// Resource is the lease's resource. Required.
	Resource fence.Resource
	// RetryMin and RetryMax bound the pause after the loss of a lease, and after a failed
	// acquire, which doubles from the one to the other. Defaults 100ms and 5s.
	RetryMin, RetryMax time.Duration
	// Logger gets a message when the lease is won or lost, and errors at growing intervals. By
	// default nothing is logged.
	Logger *slog.Logger
	// Registerer gets the metrics. By default there are none.
	Registerer prometheus.Registerer
}

// Campaign is a contender for a lease. Its methods are safe for concurrent use.
type Campaign struct {
	options Options
	held    atomic.Pointer[term]
	metrics *metrics

	mu      sync.Mutex
	changed chan struct{}
	rival   string

	acquires *slog.Logger // whether they fail
}

// term is one hold of the lease.
type term struct {
	lease *lockclient.Lease
	fence string
}

// holderInterval is how often a waiting process asks for the lease's holder, for Holder.
const holderInterval = 15 * time.Second

// revokedPause is the shortest pause after a revocation, in which another process can acquire
// the lease.
const revokedPause = time.Second

// acquiresAgain is the log's message when an acquire has got an answer.
const acquiresAgain = "leases can be acquired again"

// New makes a campaign. It does nothing before Run.
func New(o Options) (*Campaign, error) {
	o.RetryMin = cmp.Or(o.RetryMin, 100*time.Millisecond)
	o.RetryMax = cmp.Or(o.RetryMax, max(o.RetryMin, 5*time.Second))
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if _, err := fence.ParseResource(string(o.Resource)); err != nil {
		return nil, fmt.Errorf("the resource of the lease: %w", err)
	}
	c := &Campaign{options: o, changed: make(chan struct{}), acquires: quietlog.Outage(o.Logger.With("resource", o.Resource))}
	var err error
	c.metrics, err = newMetrics(c, o.Registerer)
	return c, err
}

// Resource returns the lease's resource.
func (c *Campaign) Resource() fence.Resource { return c.options.Resource }

// Fence returns the text of the lease's fence, or "" while the lease isn't held. It reads the
// clocks, so that it is right even if the process was just stopped for a while.
func (c *Campaign) Fence() string {
	t := c.held.Load()
	if t == nil || t.lease.Err() != nil {
		return ""
	}
	return t.fence
}

// Holder returns the other holder of the lease, as last seen, or "".
func (c *Campaign) Holder() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rival
}

// Changed returns a channel that is closed when the lease is next won or lost.
func (c *Campaign) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Run acquires the lease, keeps it, and acquires it again when it is lost, until ctx ends. It
// doesn't release the lease then: close the client.
func (c *Campaign) Run(ctx context.Context) {
	pause := c.options.RetryMin
	for ctx.Err() == nil {
		lease, err := c.acquire(ctx)
		pauseMin := time.Duration(0)
		switch {
		case errors.Is(err, lockclient.ErrClosed):
			return
		case err == nil && ctx.Err() == nil:
			c.acquires.Info(acquiresAgain)
			if cause := c.serve(lease); errors.Is(cause, lockclient.ErrRevoked) {
				pauseMin = revokedPause
			}
			pause = c.options.RetryMin
		case err == nil:
			c.giveUp(lease)
			return
		case ctx.Err() == nil:
			c.metrics.errors.Inc()
			c.acquires.Error("cannot acquire the lease, retrying", quietlog.ErrorAttrs(err)...)
		}
		if !sleep(ctx, max(pauseMin, pause/2+rand.N(pause/2+1))) {
			return
		}
		if err != nil {
			pause = min(2*pause, c.options.RetryMax)
		}
	}
}

// sleep reports false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// acquire waits for the lease, and notes its holder meanwhile.
func (c *Campaign) acquire(ctx context.Context) (*lockclient.Lease, error) {
	for {
		lease, err := c.options.Client.TryAcquire(ctx, c.options.Resource)
		held := (*lockclient.HeldError)(nil)
		if !errors.As(err, &held) {
			return lease, err
		}
		c.acquires.Info(acquiresAgain)
		c.standBy(held.Holder)
		waiting, stop := context.WithTimeout(ctx, holderInterval)
		lease, err = c.options.Client.Acquire(waiting, c.options.Resource)
		again := err != nil && waiting.Err() != nil && ctx.Err() == nil
		stop()
		if !again {
			return lease, err
		}
	}
}

// standBy notes the holder of the lease, and logs a new one.
func (c *Campaign) standBy(rival string) {
	c.mu.Lock()
	changed := c.rival != rival
	c.rival = rival
	c.mu.Unlock()
	if changed {
		c.options.Logger.Info("standing by for the lease", "resource", c.options.Resource, "holder", rival)
	}
}

// serve keeps a lease until it ends, and returns why it did.
func (c *Campaign) serve(lease *lockclient.Lease) error {
	log := c.options.Logger.With("resource", lease.Resource(), "token", lease.Token(), "holder", lease.Holder())
	c.setTerm(&term{lease, lease.Fence().String()})
	log.Info("holding the lease")
	<-lease.Context().Done()
	c.setTerm(nil)
	cause := context.Cause(lease.Context())
	switch {
	case errors.Is(cause, lockclient.ErrReleased):
		log.Info("the lease was released")
		return cause
	case errors.Is(cause, lockclient.ErrKept):
		log.Info("the lease is kept for a while, and not renewed any more")
		return cause
	}
	log.Warn("the lease was lost", "error", cause)
	c.giveUp(lease)
	return cause
}

// Keep ends the lease, if it is held, as lockclient.Lease.Keep does. The context of Run has ended.
func (c *Campaign) Keep(ctx context.Context) error {
	if t := c.held.Load(); t != nil {
		return t.lease.Keep(ctx)
	}
	return nil
}

// setTerm notes that the lease was won, or lost if t is nil.
func (c *Campaign) setTerm(t *term) {
	c.held.Store(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metrics.count(t != nil)
	c.rival = ""
	close(c.changed)
	c.changed = make(chan struct{})
}

// giveUpTime bounds the release of a lost lease.
const giveUpTime = 2 * time.Second

// giveUp releases a lease that has ended here, so that others needn't wait until it expires in
// the store.
func (c *Campaign) giveUp(lease *lockclient.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), giveUpTime)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		c.options.Logger.Debug("cannot release lost lease, it will expire", "error", err)
	}
}
