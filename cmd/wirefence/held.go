package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// The state of a lease, which the lease store knows. PostgreSQL has the last grant, but
// not whether it was given back, or has expired in another store.
const (
	leaseHeld    = "held"
	leaseFree    = "free"
	leaseUnknown = "unknown" // another store counts its tokens, or the configured one doesn't answer
)

// lease is a lease at this moment. What isn't known is zero.
type lease struct {
	State   string   `json:"state" says:"held, free, or unknown: its store isn't configured here, or doesn't answer"`
	HeldFor *float64 `json:"held_for_seconds,omitempty" says:"how long it is held if it isn't renewed"`
	// Holder is set where it isn't the holder of the last grant: one that waits for
	// older transactions, or whose grants aren't sealed.
	Holder string `json:"holder,omitempty" says:"the holder of the lease, if it isn't the holder of the last recorded grant"`
}

// text is the lease for a cell of a table.
func (l lease) text() string {
	if l.Holder != "" {
		return l.State + " by " + cell(holderName(l.Holder))
	}
	return l.State
}

// longText adds the remaining time, or why the lease is unknown.
func (l lease) longText() string {
	switch {
	case l.HeldFor != nil:
		left := time.Duration(*l.HeldFor * float64(time.Second)).Round(time.Second)
		return fmt.Sprintf("%s, for another %v if it isn't renewed", l.text(), left)
	case l.State == leaseUnknown:
		return leaseUnknown + ", since its store is not configured here, or doesn't answer"
	}
	return l.text()
}

const (
	looksAtOnce = 16
	lookTime    = 10 * time.Second // for all leases
)

// lookAtLeases asks the configured store who has the leases of some resources. If it can't
// be asked, it says why on stderr, and the leases are unknown.
func lookAtLeases(ctx context.Context, cfg StoreSettings, databaseURL string, of []fence.ResourceStatus, stderr io.Writer) ([]lease, error) {
	seen := make([]lease, len(of))
	for i := range seen {
		seen[i].State = leaseUnknown
	}
	store, err := openLeases(ctx, cfg, databaseURL, nil)
	if err != nil {
		return nil, usageError{err}
	}
	defer store.close()
	logRedisTo(nil)
	if looker, ok := store.store.(lockclient.Looker); ok {
		if err := lookAtAll(ctx, looker, store.counts, of, seen); err != nil {
			fmt.Fprintf(stderr, "wirefence: the lease store could not be asked who holds what: %v\n", err)
		}
	}
	return seen, nil
}

// lookAtAll fills in the leases of the resources whose tokens the looker's store counts. The
// first error ends it.
func lookAtAll(ctx context.Context, looker lockclient.Looker, counts fence.Source, of []fence.ResourceStatus, seen []lease) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTime, fmt.Errorf("no answer within %v", lookTime))
	defer cancel()
	looks, asking := errgroup.WithContext(ctx)
	looks.SetLimit(looksAtOnce)
	for i, r := range of {
		if r.Source != counts {
			continue
		}
		looks.Go(func() error {
			attempt, err := looker.Look(asking, r.Resource)
			if err == nil {
				seen[i] = leaseOf(attempt, r)
			}
			return err
		})
	}
	err := looks.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func leaseOf(seen lockclient.Attempt, r fence.ResourceStatus) lease {
	if seen.Holder == "" {
		return lease{State: leaseFree}
	}
	l := lease{State: leaseHeld}
	if seen.Remaining > 0 {
		left := seen.Remaining.Seconds()
		l.HeldFor = &left
	}
	if seen.Holder != r.Holder {
		l.Holder = seen.Holder
	}
	return l
}
