package session

import (
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Mode says what the proxy does with a verdict.
type Mode uint8

// The modes: Enforce refuses, Shadow only reports what it would refuse, Off
// forwards everything untouched.
const (
	Enforce Mode = iota
	Shadow
	Off
)

// Pooling says whether a connection pooler stands between the proxy and PostgreSQL.
type Pooling uint8

// By default the session detects a pooler: the BackendKeyData that a pooler makes up has
// another process id than PostgreSQL's backend. With PoolingSession a client keeps its
// server connection until it disconnects, as without a pooler; with PoolingTransaction
// it doesn't.
const (
	PoolingUnknown Pooling = iota
	PoolingSession
	PoolingTransaction
)

// Config is the configuration that sessions share. It is read-only after NewConfig.
type Config struct {
	Mode Mode
	// RequireFence makes transactions without a fence READ ONLY.
	RequireFence bool
	// Lease is the proxy's own; its fence covers statements without one. nil for none.
	Lease Lease
	// Guarded returns the fences of the locks that the application holds by itself, for guards
	// alone: nothing is checked. "" for none. It must be quick, and safe for concurrent use.
	Guarded func() string
	// FollowsLocks has LocksDue report where the driver has to look at the client's advisory
	// locks.
	FollowsLocks bool
	// FollowsRows are rows, as a fence names them, whose claims LocksDue has where the client's
	// messages change them.
	FollowsRows []string
	// DefaultResource is the resource of a bare token; "" makes bare tokens malformed.
	DefaultResource fence.Resource
	// MaxStatement is the largest text in bytes that is read. A larger one is forwarded in
	// parts, and refused if any part could be a fence.
	MaxStatement int
	// Pooling says whether there is a connection pooler.
	Pooling Pooling
	// Hold is how long a busy session keeps its hold before it takes it anew or gives it
	// back; 0 checks every transaction.
	Hold time.Duration
	// Traces makes Events.Waited report each wait in a recorded trace, besides samples.
	Traces bool
	// Clock returns the time. Default time.Now.
	Clock func() time.Time

	call     call
	prepared [kinds]string
}

// NewConfig returns c with its defaults and the SQL of its checks.
func NewConfig(c Config) *Config {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	c.call = newCall(c.DefaultResource, c.required(), c.Mode == Shadow, c.Lease != nil)
	for kind := range c.prepared {
		c.prepared[kind] = c.call.prepared(checkKind(kind))
	}
	return &c
}

// required reports whether transactions without a fence may only read.
func (c *Config) required() bool { return c.RequireFence || c.Lease != nil }

// Lease is the proxy's own lease. Its methods are called while sessions are
// driven: they must be quick, and safe for concurrent use.
type Lease interface {
	// Fence returns the text of the lease's fence, "" while the lease isn't held. It must
	// read the clock each time: the process may have been stopped in between.
	Fence() string
	// Resource returns the resource of the lease.
	Resource() fence.Resource
	// Holder returns the other process that holds the lease, "" if it isn't known.
	Holder() string
}

// Refusal is a verdict against a client's statement.
type Refusal struct {
	State    fence.SQLState
	Message  string
	Detail   string
	Resource fence.Resource // "" if only the server knows it
	// TraceParent is that of the statement's comment, "" without one.
	TraceParent string
	// Shadow says that the statement ran all the same.
	Shadow bool
	// Noted says that the database's history has recorded it.
	Noted bool
	// Raised says that a function of the schema, not the proxy, has raised and counted
	// the refusal. It can't count one in a READ ONLY transaction.
	Raised bool
}

// Events gets the events of a session. The session waits for its methods: they must not
// block, nor call the session.
type Events interface {
	// Checked is called for each check that the proxy inserts, and each hold that it takes.
	Checked()
	// Refused is called for each refusal that the client sees, or in shadow mode would see.
	Refused(Refusal)
	// Ended is called when the server ends a session under a fence, as a takeover does.
	Ended(Ending)
	// Waited is called with how long a client's message waited for a check or an
	// exchange: for one check in 16, and with Config.Traces for each in a recorded trace.
	// traceParent is "" unless Config.Traces is set and the trace is recorded.
	Waited(by Wait, d time.Duration, traceParent string)
	// Ran is called with how long a group under a fence took, for one in 16: from sending
	// it until the ReadyForQuery.
	Ran(d time.Duration)
	// Trouble is called for protocol violations.
	Trouble(err error)
}
