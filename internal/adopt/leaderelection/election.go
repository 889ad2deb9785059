package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/adopt/seal"
	"github.com/wirefence/wirefence/internal/apiserver"
	"github.com/wirefence/wirefence/internal/quietlog"
	"github.com/wirefence/wirefence/lockclient"
)

// election follows one Lease.
type election struct {
	opts    Options
	lock    adopt.Lock
	metrics *metrics
	log     *slog.Logger
	terms   sync.WaitGroup

	mu      sync.Mutex
	failure error           // why the Lease wasn't seen; nil once it was
	seen    bool            // the Lease was seen once
	last    apiserver.Lease // as it was seen last; zero for none
	changed time.Time       // this process saw the last change of the holder's record
	term    *term           // nil while the application isn't the holder, or this process didn't see it elected
}

// term is a tenure of the application, from its election on.
type term struct {
	tenure
	token  fence.Token // written by its goroutine, under the election's mu
	sealed bool
	began  bool          // a lease has; of the election's mu
	again  chan struct{} // takes a renewal behind the lease's end
	cancel context.CancelFunc
}

// tenure is what no two tenures have in common. An identity is new in each process, but a process may
// be elected again.
type tenure struct {
	uid         string
	identity    string
	transitions int32
}

func tenureOf(l apiserver.Lease) tenure {
	return tenure{l.Metadata.UID, l.Spec.HolderIdentity, l.Spec.LeaseTransitions}
}

// tokenOf is the token of the tenure that a Lease shows: a Lease that is made anew begins with none of
// its transitions, at a later time.
func tokenOf(l apiserver.Lease) fence.Token {
	return fence.Token(l.Metadata.CreationTimestamp.Unix()<<20 + int64(l.Spec.LeaseTransitions) + 1)
}

func newElection(o Options, lock adopt.Lock, metrics *metrics) *election {
	return &election{opts: o, lock: lock, metrics: metrics, failure: errors.New("it wasn't asked for yet"),
		log: o.Logger.With("lock", lock.String(), "resource", lock.Resource)}
}

// unseen returns why the Lease wasn't seen yet.
func (e *election) unseen() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen {
		return nil
	}
	return e.failure
}

// failed records why the Lease can't be read.
func (e *election) failed(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failure = err
}

// silence is how long a watch may bring nothing.
func (e *election) silence() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last.Spec.HolderIdentity == "" {
		return maxSilence
	}
	return min(max(duration(e.last)/2, minSilence), maxSilence)
}

// duration is how long others regard the holder as one behind each of its changes.
func duration(l apiserver.Lease) time.Duration {
	return time.Duration(l.Spec.LeaseDurationSeconds) * time.Second
}

// observe records the Lease as it was at a time of this process' clock. The holder's clock isn't
// asked: a change is one of the record, as in client-go.
func (e *election) observe(l apiserver.Lease, exists bool, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, first := e.last, !e.seen
	e.last, e.seen = l, true
	if !first && before.Metadata.UID == l.Metadata.UID && before.Spec == l.Spec {
		return
	}
	e.changed = at
	switch {
	case first:
		if own, _ := isOwn(l.Spec.HolderIdentity, e.opts.Owner); own {
			e.refuse("it was held before this sidecar saw it, maybe by an earlier process: the next election counts")
		}
	case tenureOf(before) != tenureOf(l):
		reason := whyEnded(before, l, exists)
		if own, _ := isOwn(before.Spec.HolderIdentity, e.opts.Owner); own && (e.term == nil || !e.term.began) {
			e.opts.Book.Refuse(e.leaseOf(before.Spec.HolderIdentity), reason) // in place of why none had begun
		}
		e.endTerm(reason)
		e.elect(l)
	case e.term != nil && !e.opts.Book.Extend(e.lock.Resource, e.term.token, at.Add(duration(l))):
		select {
		case e.term.again <- struct{}{}:
		default:
		}
	}
}

// elect begins a term if the application was elected. The caller holds mu.
func (e *election) elect(l apiserver.Lease) {
	own, isNew := isOwn(l.Spec.HolderIdentity, e.opts.Owner)
	if own && !isNew {
		e.refuse("its holder " + l.Spec.HolderIdentity + " may be that of an earlier process, too: the identity must be " + e.opts.Owner + "_UUID, with a UUID that is new in each process")
	}
	if !own || !isNew {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := &term{tenure: tenureOf(l), token: tokenOf(l), again: make(chan struct{}, 1), cancel: cancel}
	e.term = t
	e.terms.Go(func() { e.serve(ctx, t) })
}

// refuse records why the application has no lease, although it has the Lease. The caller holds mu.
func (e *election) refuse(reason string) {
	e.opts.Book.Refuse(e.leaseOf(e.last.Spec.HolderIdentity), reason)
	e.log.Warn("no lease follows the Lease", "holder", e.last.Spec.HolderIdentity, "reason", reason)
}

func (e *election) leaseOf(identity string) adopt.Lease {
	return adopt.Lease{Resource: e.lock.Resource, Source: Source, Holder: identity, From: e.lock.String()}
}

// endTerm ends the application's tenure. The caller holds mu.
func (e *election) endTerm(reason string) {
	if e.term != nil {
		e.term.cancel()
		e.opts.Book.End(e.lock.Resource, e.term.token, reason)
		e.term = nil
	}
}

func whyEnded(before, now apiserver.Lease, exists bool) string {
	switch {
	case !exists || before.Metadata.UID != now.Metadata.UID:
		return "the Lease was deleted"
	case now.Spec.HolderIdentity == "":
		return "the Lease was released"
	case now.Spec.HolderIdentity == before.Spec.HolderIdentity:
		return "the holder was elected again"
	}
	return "the Lease is another holder's"
}

// close ends the work of a term. Its lease lasts until its time passes.
func (e *election) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term != nil {
		e.term.cancel()
	}
}

// serve begins the lease of a term, and begins it again if it has ended by its time and the holder
// renews: nobody was elected meanwhile.
func (e *election) serve(ctx context.Context, t *term) {
	failures := quietlog.Limiter{Every: time.Minute}
	defer failures.End()
	log := failures.On(e.log.With("holder", t.identity))
	for {
		err := e.begin(ctx, t)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			e.metrics.grants.Inc()
			e.log.Info("the application was elected", "holder", t.identity, "token", t.token)
		} else {
			e.opts.Book.Refuse(e.leaseOf(t.identity), "it hasn't begun yet: "+err.Error())
			e.metrics.failedSeals.Inc()
			log.Warn("cannot begin the lease, retrying while the holder stays", append([]any{"token", t.token}, quietlog.ErrorAttrs(err)...)...)
		}
		if err != nil && !errors.Is(err, errTime) {
			sleep(ctx, e.opts.Retry)
			continue
		}
		e.awaitEnd(ctx, t)
	}
}

// awaitEnd returns when the lease of a term must begin again, or ctx has ended.
func (e *election) awaitEnd(ctx context.Context, t *term) {
	compare := time.NewTicker(e.opts.Compare)
	defer compare.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.again:
			return
		case <-compare.C:
			if t.sealed && !e.isLast(ctx, t) {
				return
			}
		}
	}
}

// isLast reports whether a term's grant is the last one in the databases that answer. One that doesn't
// know it, as after a promotion, has it sealed again. A revocation ends the term.
func (e *election) isLast(ctx context.Context, t *term) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	grants, _ := lockclient.LastGrants(ctx, nil, e.opts.Sealers, e.lock.Resource, true)
	for _, last := range grants {
		switch {
		case last.Former || last.Token < t.token:
			t.sealed = false
			e.opts.Book.End(e.lock.Resource, t.token, "a database no longer knows its grant")
			return false
		case last.Token > t.token:
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.term == t {
				e.endTerm("the lease was revoked, or granted to another holder")
			}
			return false
		}
	}
	return true
}

// Reasons for which an election has no lease yet.
var (
	errLost = errors.New("the Lease became another holder's meanwhile")
	errTime = errors.New("the holder doesn't renew the Lease in time")
)

// begin seals the election, unless it is sealed, and begins the lease if the Lease is then still the
// holder's. A token that the database knows, or exceeds, becomes a higher one only behind such a look:
// so seals are in the order of elections.
func (e *election) begin(ctx context.Context, t *term) error {
	ctx, cancel := context.WithTimeout(ctx, e.opts.SealTimeout)
	defer cancel()
	for range seal.Rounds {
		last := fence.Token(0)
		if !t.sealed {
			var err error
			if last, err = seal.Everywhere(ctx, e.opts.Sealers, fence.Grant{Resource: e.lock.Resource, Token: t.token, Holder: t.identity}); err != nil {
				return err
			}
			t.sealed = last == 0
		}
		sent := time.Now()
		seen, err := e.look(ctx)
		switch {
		case err != nil:
			return err
		case tenureOf(seen.Lease) != t.tenure:
			return errLost
		case t.sealed:
			return e.hold(t, seen.Lease, sent)
		}
		e.mu.Lock()
		t.token = last + 1
		e.mu.Unlock()
	}
	return fmt.Errorf("another token was recorded meanwhile, %d times", seal.Rounds)
}

// hold begins the lease of a term whose Lease was read at a time.
func (e *election) hold(t *term, l apiserver.Lease, sent time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term != t {
		return errLost
	}
	select {
	case <-t.again: // a renewal until now
	default:
	}
	changed := e.changed
	if l.Spec != e.last.Spec { // a change that the watch has yet to bring
		changed = sent
	}
	lease := e.leaseOf(t.identity)
	lease.Token, lease.Until = t.token, changed.Add(duration(l))
	if !e.opts.Book.Begin(lease) {
		return errTime
	}
	t.began = true
	return nil
}
