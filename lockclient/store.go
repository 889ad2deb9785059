package lockclient

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// Store keeps the holder and the expiry of each resource's lease. It also counts the tokens,
// but does not judge them: it may lose all data without harm to a client that seals.
// Package storetest is the suite that every store passes.
//
// A grant is an id of up to MaxGrantBytes that is never used for two grants, and a secret:
// with it one renews and releases the lease. A store keeps HolderOf(grant), so that nobody
// learns the id from it. Every method is safe for concurrent use, returns the context's error if it gave up
// because of the context, and names the server in all other errors. After an error the
// store may or may not have done what was requested.
type Store interface {
	// Acquire tries once to win the lease and does not wait for a holder. If the
	// resource is free, it is held for ttl from some moment after the call began, or
	// longer if the clock of the store has larger steps, and the token is greater than
	// every token counted for the resource before. A repeated Acquire by the present
	// holder, whose answer was lost, counts a new token and restarts the ttl.
	Acquire(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (Attempt, error)

	// Renew restarts the ttl if the grant has the lease, and reports whether it has. It
	// never revives a lease that has ended. With a longer ttl than before the lease lasts as
	// long; with a shorter one it may last as long as before.
	Renew(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (held bool, err error)

	// Release frees the resource if the grant has the lease, and reports whether it
	// had.
	Release(ctx context.Context, resource fence.Resource, grant string) (held bool, err error)

	// Raise makes the counter of the resource at least token, so that the next Acquire
	// counts a greater one. It never lowers the counter.
	Raise(ctx context.Context, resource fence.Resource, token fence.Token) error
}

// StoreCloser is a store that has connections of its own.
type StoreCloser interface {
	Store
	// Close ends the connections. The client of the store must be closed before.
	Close() error
}

// Attempt is the answer to an acquire: the token of the lease if it was won, otherwise
// its holder.
type Attempt struct {
	// Token is at least 1 if the lease was won, else 0.
	Token fence.Token
	// Holder is the holder of a lease that was not won.
	Holder string
	// Remaining is how long that holder's lease lasts without a renewal; 0 if the store
	// cannot tell.
	Remaining time.Duration
}

// Won reports whether the lease was won.
func (a Attempt) Won() bool { return a.Token > 0 }

// Notifier is implemented by a store that can notify waiters of a release. Notices only
// shorten the wait: they may be lost or needless, and the client polls anyway.
type Notifier interface {
	// Notify sends on the channel when it has begun to listen and after each
	// release of the resource, until stop is called. A notice that finds the
	// channel full is dropped.
	Notify(ctx context.Context, resource fence.Resource, released chan<- struct{}) (stop func(), err error)
}

// Looker is implemented by a store that can report the holder of a lease without an
// attempt to acquire it.
type Looker interface {
	// Look returns the holder of the lease and how long it lasts, or a zero Attempt if
	// the resource is free. The answer may be out of date by the time it is read.
	Look(ctx context.Context, resource fence.Resource) (Attempt, error)
	// Free is Release for an operator, who doesn't know the grant's id but the holder, as
	// Look returned it.
	Free(ctx context.Context, resource fence.Resource, holder string) (held bool, err error)
}

// Counter is implemented by a store that counts tokens by itself, and can report its
// count.
type Counter interface {
	// Counted returns a token that the next Acquire exceeds, 0 if none was ever counted.
	// It changes nothing. A count below what PostgreSQL has recorded does no harm to a
	// client that seals: the next grant raises it.
	Counted(ctx context.Context, resource fence.Resource) (fence.Token, error)
}

// Transient is implemented by a store that can't leave a lease taken for longer than its process
// lives.
type Transient interface {
	// EndsWithProcess reports whether leases end with the process that acquired them,
	// whatever their ttl.
	EndsWithProcess() bool
}

// Examiner is implemented by a store that can tell what in the set-up of its servers costs
// leases.
type Examiner interface {
	Examinations() []finding.Examination
}

// MaxGrantBytes is the length of the longest id of a grant that a client gives to a store.
const MaxGrantBytes = 200

// HolderOf returns the name by which everybody may know the holder of a grant: the part of the
// id before its last slash, a slash, and 26 characters of a hash of the id.
func HolderOf(grant string) string {
	sum := sha256.Sum256([]byte(grant))
	return grant[:max(0, strings.LastIndexByte(grant, '/'))] + "/" + base32.StdEncoding.EncodeToString(sum[:])[:26]
}
