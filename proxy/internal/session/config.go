package session

import (
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Mode is what the proxy does with a verdict.
type Mode uint8

// The modes: Enforce refuses, Shadow only reports what it would refuse, Off
// forwards everything untouched.
const (
	Enforce Mode = iota
	Shadow
	Off
)

// Pooling says what stands between the proxy and PostgreSQL.
type Pooling uint8

// By default the session finds out whether there is a pooler: the key that it makes
// up for a client has another process id than PostgreSQL's. PoolingSession is for
// one that leaves a server connection to one client until it goes, which is as good
// as none; PoolingTransaction for one that doesn't.
const (
	PoolingUnknown Pooling = iota
	PoolingSession
	PoolingTransaction
)

// Config is the policy that sessions share. It is not changed after New.
type Config struct {
	Mode Mode
	// RequireFence lets what carries no fence only read.
	RequireFence bool
	// Lease is the proxy's own, with whose fence runs what carries none; nil for none.
	Lease Lease
	// DefaultResource is what a bare token means; "" means none may be bare.
	DefaultResource fence.Resource
	// MaxStatement is the largest text in bytes that is read. A larger one passes
	// if nothing in it could be a fence, else it is refused.
	MaxStatement int
	// Pooling is what is known of a pooler between the proxy and PostgreSQL.
	Pooling Pooling
	// Hold is how long a busy session keeps its hold before it is taken anew or given
	// back; 0 checks every transaction.
	Hold time.Duration
	// Traces has Events told of each wait of a message whose traceparent says that it is
	// recorded, besides the samples.
	Traces bool
	// Clock tells the time, time.Now outside tests.
	Clock func() time.Time

	call     call
	prepared [kinds]string
}

// NewConfig completes a configuration.
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

// required reports whether what carries no fence may only read.
func (c *Config) required() bool { return c.RequireFence || c.Lease != nil }

// Lease is the proxy's own lease. Its methods are called while sessions are
// driven: they must be quick, and safe for concurrent use.
type Lease interface {
	// Fence is the text of the fence to check with, or "" while the lease isn't
	// held. It must not go by what was so a moment ago: the process may have been
	// stopped since.
	Fence() string
	// Resource is what the lease is of.
	Resource() fence.Resource
	// Holder is who else holds it, as far as that is known, else "".
	Holder() string
}

// Refusal is a verdict against a client's statement.
type Refusal struct {
	State    fence.SQLState
	Message  string
	Detail   string
	Resource fence.Resource // where the proxy itself knows it
	// TraceParent is that of the statement's comment, "" without one.
	TraceParent string
	// Shadow says that the statement was let through all the same.
	Shadow bool
	// Noted says that the database's history tells of it.
	Noted bool
	// Raised says that a function of the schema has raised it, and not the proxy, and
	// has counted it, which it can't in a READ ONLY transaction.
	Raised bool
}

// Events is told what happens in a session. Its methods are called while the
// session is being driven: they must not block, nor call the session.
type Events interface {
	// Checked is called for each check that was put in, and each hold that was asked for.
	Checked()
	// Refused is called for each refusal that the client sees, or would see.
	Refused(Refusal)
	// Ended is called when the server ends a session that is under a fence, as a takeover
	// does with what is in its way.
	Ended(Ending)
	// Waited is called with how long a client's message waited for a check or an
	// exchange: of checks for one in 16, and with Config.Traces for each of a recorded
	// trace. traceParent is "" unless Config.Traces is set and the trace is recorded.
	Waited(by Wait, d time.Duration, traceParent string)
	// Ran is called with how long a group under a fence took, for one in 16: from when it
	// was sent on until the server was ready for the next, or had refused it.
	Ran(d time.Duration)
	// Trouble is called for what an operator should know of: err says what.
	Trouble(err error)
}
