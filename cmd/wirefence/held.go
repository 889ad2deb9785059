package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// What the lease store says of a resource's lease. PostgreSQL has the last grant, and
// not whether it was given back, or has expired in another store.
const (
	leaseHeld    = "held"
	leaseFree    = "free"
	leaseUnknown = "unknown" // its tokens are another store's than the configured one's, or that doesn't answer
)

// lease is a lease at this moment. What isn't known is zero.
type lease struct {
	State   string   `json:"state" says:"held, free, or unknown: its store isn't configured here, or doesn't answer"`
	HeldFor *float64 `json:"held_for_seconds,omitempty" says:"how long it is held if it isn't renewed"`
	// Holder has it where that is not the holder of the last grant: one who waits for
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

// longText adds what a list has no room for.
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
	lookers  = 16               // that ask a store at the same time
	lookTime = 10 * time.Second // for all leases
)

// lookAtLeases asks the configured store who has the leases of some resources. It tells
// on stderr why it can't.
func lookAtLeases(ctx context.Context, cfg StoreSettings, databaseURL string, of []fence.ResourceStatus, stderr io.Writer) ([]lease, error) {
	seen := make([]lease, len(of))
	for i := range seen {
		seen[i].State = leaseUnknown
	}
	store, err := openLeases(ctx, cfg, databaseURL)
	if err != nil {
		return nil, usageError{err}
	}
	defer store.close()
	goredis.SetLogger(redisLog{slog.New(slog.DiscardHandler)}) // what fails is told
	looker, ok := store.store.(lockclient.Looker)
	if !ok {
		return seen, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lookTime, fmt.Errorf("no answer within %v", lookTime))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	indices := make(chan int)
	var asking sync.WaitGroup
	for range min(lookers, len(of)) {
		asking.Go(func() {
			for i := range indices {
				attempt, err := looker.Look(ctx, of[i].Resource)
				if err != nil {
					fail(err) // the first one counts, and nobody waits for the others
					continue
				}
				seen[i] = leaseOf(attempt, of[i], store.counts)
			}
		})
	}
	for i, r := range of {
		if r.Source == store.counts {
			indices <- i
		}
	}
	close(indices)
	asking.Wait()
	if cause := context.Cause(ctx); cause != nil {
		fmt.Fprintf(stderr, "wirefence: the lease store could not be asked who holds what: %v\n", cause)
	}
	return seen, nil
}

func leaseOf(seen lockclient.Attempt, r fence.ResourceStatus, counts fence.Source) lease {
	if seen.Holder == "" {
		return lease{State: leaseFree}
	}
	l := lease{State: leaseHeld}
	if seen.Remaining > 0 {
		left := seen.Remaining.Seconds()
		l.HeldFor = &left
	}
	if counts != fence.SourcePostgres && seen.Holder != r.Holder { // PostgreSQL tells the grant's id, and records both at once
		l.Holder = seen.Holder
	}
	return l
}
