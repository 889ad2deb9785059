package lockclient

import (
	"context"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Store keeps leases: who holds a resource, and until when. It also counts the
// tokens, but it is not their judge: it may forget everything without harm to a
// client that seals. Package storetest is the suite that every store passes.
//
// A holder is an opaque text of up to MaxHolderBytes that is never used for two
// grants. Every method is safe for concurrent use, returns the context's error
// when it gave up because of the context, and names the server in all others.
// An error leaves open whether the store has done what was asked.
type Store interface {
	// Acquire tries once to win the lease and does not wait for a holder. If
	// the resource is free, it is held for ttl from some moment after the call
	// began, or longer where a store's own clock ticks in greater steps, and
	// the token is greater than every token counted for the
	// resource before. Acquire by the present holder repeats a request whose
	// answer was lost: it counts a new token and starts the ttl again.
	Acquire(ctx context.Context, resource fence.Resource, holder string, ttl time.Duration) (Attempt, error)

	// Renew starts the ttl again if the holder has the lease, and reports
	// whether it has. It never brings back a lease that has gone.
	Renew(ctx context.Context, resource fence.Resource, holder string, ttl time.Duration) (held bool, err error)

	// Release frees the resource if the holder has the lease, and reports
	// whether it had.
	Release(ctx context.Context, resource fence.Resource, holder string) (held bool, err error)

	// Raise makes the counter of the resource at least token, so that the next
	// Acquire counts a greater one. It never lowers it.
	Raise(ctx context.Context, resource fence.Resource, token fence.Token) error
}

// Attempt is the answer to an acquire: the token of a lease that was won, or
// who holds it.
type Attempt struct {
	// Token is at least 1 if the lease was won, else 0.
	Token fence.Token
	// Holder is who holds a lease that was not won.
	Holder string
	// Remaining is how long that holder has left if it doesn't renew; 0 if the
	// store can't tell.
	Remaining time.Duration
}

// Won reports whether the lease was won.
func (a Attempt) Won() bool { return a.Token > 0 }

// Notifier is implemented by a store that can tell waiters of a release. It
// only shortens the wait: notices may be lost or come for nothing, and the
// client keeps polling.
type Notifier interface {
	// Notify sends on the channel when it has begun to listen and after each
	// release of the resource, until stop is called. A notice that finds the
	// channel full is dropped.
	Notify(ctx context.Context, resource fence.Resource, released chan<- struct{}) (stop func(), err error)
}

// Looker is implemented by a store that can tell who has a lease to somebody who
// doesn't want it.
type Looker interface {
	// Look returns who has the lease and for how long, or a zero Attempt if
	// nobody has. It may be out of date by the time it is read.
	Look(ctx context.Context, resource fence.Resource) (Attempt, error)
}

// Counter is implemented by a store that counts tokens by itself, and can tell how
// far it is.
type Counter interface {
	// Counted returns a token that the next Acquire exceeds, 0 if none was ever
	// counted. It changes nothing. One below what PostgreSQL has seen is no harm
	// to a client that seals: the next grant raises it.
	Counted(ctx context.Context, resource fence.Resource) (fence.Token, error)
}

// MaxHolderBytes is the longest holder that a store is given.
const MaxHolderBytes = 200
