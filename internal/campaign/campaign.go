// Package campaign holds the lease of one resource for as long as it can, and
// waits for it for as long as another has it: a process that leads or stands by.
//
// The package imports lockclient and fence.
package campaign

import (
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
	"github.com/wirefence/wirefence/lockclient"
)

// Options of a Campaign. The zero value of a field means its default.
type Options struct {
	// Client takes the lease. Required. It stays the caller's: closing it releases
	// the lease and ends the campaign.
	Client *lockclient.Client
	// Resource is what the lease is of. Required.
	Resource fence.Resource
	// RetryMin and RetryMax bound the pause after a lease was lost, and after an
	// acquire that failed, which doubles from the one to the other. Defaults 100ms
	// and 5s.
	RetryMin, RetryMax time.Duration
	// Logger gets a message when the lease is won or lost, and each new error once. By
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

	trouble string    // the error that was logged last; "" if all is well. Run's alone
	logged  time.Time // when
}

// term is one hold of the lease.
type term struct {
	lease *lockclient.Lease
	fence string
}

// lookAgain is how often a contender asks anew who has the lease, for Holder.
const lookAgain = 15 * time.Second

// othersFirst is the shortest pause after a revocation, in which another holder can acquire
// the lease.
const othersFirst = time.Second

// repeatTrouble is how often an error may be logged that differs from the last.
const repeatTrouble = time.Minute

// New makes a campaign. It does nothing before Run.
func New(o Options) (*Campaign, error) {
	if o.RetryMin == 0 {
		o.RetryMin = 100 * time.Millisecond
	}
	if o.RetryMax == 0 {
		o.RetryMax = max(o.RetryMin, 5*time.Second)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if _, err := fence.ParseResource(string(o.Resource)); err != nil {
		return nil, fmt.Errorf("the resource of the lease: %w", err)
	}
	c := &Campaign{options: o, changed: make(chan struct{})}
	var err error
	c.metrics, err = newMetrics(c, o.Registerer)
	return c, err
}

// Resource is what the lease is of.
func (c *Campaign) Resource() fence.Resource { return c.options.Resource }

// Fence is the text of the lease's fence, or "" while the lease isn't held. It
// reads the clocks, so it also tells a process that was stopped a moment ago.
func (c *Campaign) Fence() string {
	t := c.held.Load()
	if t == nil || t.lease.Err() != nil {
		return ""
	}
	return t.fence
}

// Holder is the other holder of the lease, as last seen, or "".
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

// Run wins the lease, keeps it, and wins it again when it is lost, until ctx ends.
// A lease that is held then is kept until it ends: close the client to release it.
func (c *Campaign) Run(ctx context.Context) {
	pause := c.options.RetryMin
	for ctx.Err() == nil {
		lease, err := c.acquire(ctx)
		least := time.Duration(0)
		switch {
		case errors.Is(err, lockclient.ErrClosed):
			return
		case err == nil && ctx.Err() == nil:
			c.recovered()
			if cause := c.serve(lease); errors.Is(cause, lockclient.ErrRevoked) {
				least = othersFirst
			}
			pause = c.options.RetryMin
		case err == nil:
			c.giveUp(lease)
			return
		case ctx.Err() == nil:
			c.failed(err)
		}
		if !sleep(ctx, max(least, pause/2+rand.N(pause/2+1))) {
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

// acquire waits for the lease, and meanwhile notes its holder.
func (c *Campaign) acquire(ctx context.Context) (*lockclient.Lease, error) {
	for {
		lease, err := c.options.Client.TryAcquire(ctx, c.options.Resource)
		held := (*lockclient.HeldError)(nil)
		if !errors.As(err, &held) {
			return lease, err
		}
		c.recovered()
		c.standBy(held.Holder)
		waiting, stop := context.WithTimeout(ctx, lookAgain)
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
	news := c.rival != rival
	c.rival = rival
	c.mu.Unlock()
	if news {
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
	if errors.Is(cause, lockclient.ErrReleased) {
		log.Info("the lease was released")
		return cause
	}
	log.Warn("the lease was lost", "error", cause)
	c.giveUp(lease)
	return cause
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

// giveUp releases a lease that has ended here and that the store may still have, so that
// others don't have to wait for its expiry.
func (c *Campaign) giveUp(lease *lockclient.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), giveUpTime)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		c.options.Logger.Debug("cannot release lost lease, it will expire", "error", err)
	}
}

// failed logs an error, unless it was the last one, or the last one is recent.
func (c *Campaign) failed(err error) {
	c.metrics.errors.Inc()
	text := err.Error()
	if c.trouble == "" || c.trouble != text && time.Since(c.logged) > repeatTrouble {
		c.options.Logger.Error("cannot acquire the lease, retrying", "resource", c.options.Resource, "error", err)
		c.trouble, c.logged = text, time.Now()
	}
}

// recovered notes that the store answers.
func (c *Campaign) recovered() {
	if c.trouble != "" {
		c.options.Logger.Info("leases can be acquired again", "resource", c.options.Resource)
		c.trouble = ""
	}
}
