package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/apiserver"
	"github.com/wirefence/wirefence/internal/quietlog"
)

// Follower follows the Leases of one application. It is safe for concurrent use.
type Follower struct {
	elections []*election
}

// New makes a follower, which does nothing before Run.
func New(o Options) (*Follower, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	metrics, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	f := &Follower{}
	for _, lock := range o.Locks {
		f.elections = append(f.elections, newElection(o, lock, metrics))
	}
	return f, nil
}

// Ready returns nil once each Lease was seen: an election behind that is the application's.
func (f *Follower) Ready() error {
	for _, e := range f.elections {
		if err := e.unseen(); err != nil {
			return fmt.Errorf("%s wasn't read yet: %w", e.lock, err)
		}
	}
	return nil
}

// Run follows the Leases until ctx ends. The leases in the book then last until their time passes.
func (f *Follower) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, e := range f.elections {
		all.Go(func() { e.run(ctx) })
	}
	all.Wait()
}

// run watches the Lease until ctx ends, and looks anew where a watch has ended.
func (e *election) run(ctx context.Context) {
	outage := quietlog.Outage(e.log)
	defer e.terms.Wait()
	defer e.close()
	for ctx.Err() == nil {
		next := time.Now().Add(e.opts.Retry)
		err := e.watch(ctx, func() { outage.Info("the Lease can be read again") })
		if err != nil && ctx.Err() == nil {
			e.failed(err)
			if apiserver.Forbidden(err) {
				err = fmt.Errorf("%w: the service account needs the verbs list and watch for it", err)
			}
			outage.Error("cannot read the Lease, retrying", "error", err)
		}
		sleep(ctx, time.Until(next))
	}
}

// lookTime bounds the reading of a Lease, and silence is how long a watch may bring nothing: the
// connection may be dead. Whoever holds the Lease renews it several times in its duration.
const (
	lookTime               = 5 * time.Second
	minSilence, maxSilence = time.Second, 10 * time.Second
)

// watch reads the Lease, and then its changes until the watch ends or brings nothing.
func (e *election) watch(ctx context.Context, watched func()) error {
	sent := time.Now()
	seen, err := e.look(ctx)
	if err != nil {
		return err
	}
	e.observe(seen.Lease, seen.Exists, sent)
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(e.silence(), cancel)
	defer silence.Stop()
	w, err := e.opts.Client.Watch(watching, e.lock.Space, e.lock.Name, seen.Version)
	if err == nil {
		defer w.Close()
		watched()
	}
	for err == nil {
		var l apiserver.Lease
		var exists bool
		if l, exists, err = w.Next(); err == nil {
			e.observe(l, exists, time.Now())
			silence.Reset(e.silence())
		}
	}
	if watching.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// look reads the Lease as it is now.
func (e *election) look(ctx context.Context) (apiserver.Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	return e.opts.Client.Look(ctx, e.lock.Space, e.lock.Name)
}

// Look reads who holds a Lease, "" for nobody, and the token of that election, which a seal may raise.
func Look(ctx context.Context, client *apiserver.Client, lock adopt.Lock) (holder string, token fence.Token, err error) {
	seen, err := client.Look(ctx, lock.Space, lock.Name)
	if err != nil || seen.Lease.Spec.HolderIdentity == "" {
		return "", 0, err
	}
	return seen.Lease.Spec.HolderIdentity, tokenOf(seen.Lease), nil
}

// sleep waits, or returns earlier when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
