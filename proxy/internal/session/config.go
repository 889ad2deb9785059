package session

import (
	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/weave"
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

// Config is the policy that sessions share. It is not changed after New.
type Config struct {
	Mode Mode
	// RequireFence refuses writes that carry no fence.
	RequireFence bool
	// Lease is the proxy's own, with whose fence writes are checked that carry none;
	// nil for none.
	Lease Lease
	// DefaultResource is what a bare token means; "" means none may be bare.
	DefaultResource fence.Resource
	// MaxStatement is the largest text in bytes that is scanned. A larger one
	// passes if nothing in it could be a fence, else it is refused.
	MaxStatement int
	// Pooling is what is known of a pooler between the proxy and PostgreSQL.
	Pooling Pooling

	call       weave.Call
	prepared   [kinds]string // by kindOf
	everyWrite bool          // must be checked, or refused
}

// NewConfig completes a configuration.
func NewConfig(c Config) *Config {
	c.call = weave.NewCall(c.DefaultResource, c.RequireFence, c.Mode == Shadow)
	if c.Lease != nil {
		c.call = c.call.Leased()
	}
	c.prepared = [kinds]string{
		forWrites: c.call.Prepared(weave.Carrier{}),
		forReads:  c.call.Prepared(weave.Carrier{Reads: true}),
		behind:    c.call.Prepared(weave.Carrier{Behind: true}),
	}
	c.everyWrite = c.RequireFence || c.Lease != nil
	return &c
}

// Refusal is a verdict against a client's statement.
type Refusal struct {
	State   fence.SQLState
	Message string
	Detail  string
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
	// Checked is called for each check that was put in.
	Checked()
	// Refused is called for each refusal that the client sees, or would see.
	Refused(Refusal)
	// Trouble is called for what an operator should know of: err says what.
	Trouble(err error)
}
