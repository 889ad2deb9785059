package adopt

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Lease is a lease that follows a lock of the application's.
type Lease struct {
	Resource fence.Resource
	Token    fence.Token
	Source   fence.Source // "" for the resource's own
	Holder   string
	From     string    // the lock, as Lock.String writes it
	Since    time.Time // Begin sets it
	Until    time.Time // zero for a lock without an end of its own
	// Ended says why the lease is over, "" while it is held.
	Ended string
}

// Expired is why a lease is over whose time has passed.
const Expired = "its time has passed"

func (l Lease) heldAt(now time.Time) bool {
	return l.Ended == "" && (l.Until.IsZero() || now.Before(l.Until))
}

// Book has the leases that the application of this process holds now. The zero value is ready, and
// is safe for concurrent use.
type Book struct {
	mu      sync.Mutex
	leases  []Lease // the last one of each resource, sorted by resource
	changed chan struct{}
	timer   *time.Timer // at the next end of a lease

	text atomic.Pointer[fenceText] // nil while it must be made anew
}

// fenceText is the fence until one of its leases ends.
type fenceText struct {
	text  string
	until time.Time // zero for no end
}

// Begin records a grant that was sealed. It reports false, and records nothing, if the book knows
// a higher token of the resource, or if the lease's time has passed.
func (b *Book) Begin(l Lease) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.Since, l.Ended = time.Now(), ""
	if !l.heldAt(l.Since) {
		return false
	}
	i, found := b.find(l.Resource)
	switch {
	case !found:
		b.leases = slices.Insert(b.leases, i, l)
	case b.leases[i].Token > l.Token:
		return false
	default:
		b.leases[i] = l
	}
	b.noteChange()
	return true
}

// Extend moves the end of a lease that is held. It reports false if the lease isn't.
func (b *Book) Extend(resource fence.Resource, token fence.Token, until time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, found := b.find(resource)
	if !found || b.leases[i].Token != token || !b.leases[i].heldAt(time.Now()) {
		return false
	}
	b.leases[i].Until = until
	b.noteChange()
	return true
}

// End records that the lease of a token is over, and why. It reports false if it was before.
func (b *Book) End(resource fence.Resource, token fence.Token, reason string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, found := b.find(resource)
	if !found || b.leases[i].Token != token || !b.leases[i].heldAt(time.Now()) {
		return false
	}
	b.leases[i].Ended = reason
	b.noteChange()
	return true
}

// Refuse records why the application has no lease, although it has the lock. It changes nothing while
// a lease of the resource is held.
func (b *Book) Refuse(l Lease, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.Ended = reason
	i, found := b.find(l.Resource)
	switch {
	case !found:
		b.leases = slices.Insert(b.leases, i, l)
	case !b.leases[i].heldAt(time.Now()):
		l.Token = b.leases[i].Token // which the next one must not be below
		b.leases[i] = l
	}
}

// Holds reports whether the lease of a token is held now.
func (b *Book) Holds(resource fence.Resource, token fence.Token) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, found := b.find(resource)
	return found && b.leases[i].Token == token && b.leases[i].heldAt(time.Now())
}

// Fence returns the fence of all leases that are held now, "" for none. It reads the clock, so it
// is right in a process that was stopped a moment ago, too.
func (b *Book) Fence() string {
	if f := b.text.Load(); f != nil && (f.until.IsZero() || time.Now().Before(f.until)) {
		return f.text
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.fenceLocked()
	b.text.Store(f)
	return f.text
}

func (b *Book) fenceLocked() *fenceText {
	f, now := &fenceText{}, time.Now()
	var pairs []fence.Pair
	for _, l := range b.leases {
		if l.heldAt(now) {
			pairs = append(pairs, fence.Pair{Resource: l.Resource, Token: l.Token, Source: l.Source})
			f.until = earlier(f.until, l.Until)
		}
	}
	if len(pairs) > 0 {
		merged, err := fence.New(pairs...)
		if err != nil {
			return &fenceText{} // more resources than From allows, or none that is valid
		}
		f.text = merged.String()
	}
	return f
}

// earlier returns the earlier of two ends, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Changed returns a channel that is closed when a lease begins, ends, expires or is extended.
func (b *Book) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.changed
}

// Leases returns the last lease of each resource, sorted by resource, those that are over too.
func (b *Book) Leases() []Lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	all, now := slices.Clone(b.leases), time.Now()
	for i, l := range all {
		if l.Ended == "" && !l.heldAt(now) {
			all[i].Ended = Expired
		}
	}
	return all
}

func (b *Book) find(resource fence.Resource) (int, bool) {
	return slices.BinarySearchFunc(b.leases, resource, func(l Lease, r fence.Resource) int {
		return strings.Compare(string(l.Resource), string(r))
	})
}

// noteChange makes the next Fence look anew, wakes those who wait, and sets the timer to the next
// end of a lease. The caller holds mu.
func (b *Book) noteChange() {
	b.text.Store(nil)
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	now := time.Now()
	var next time.Time
	for _, l := range b.leases {
		if l.heldAt(now) {
			next = earlier(next, l.Until)
		}
	}
	if !next.IsZero() {
		b.timer = time.AfterFunc(next.Sub(now), func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.noteChange()
		})
	}
}
