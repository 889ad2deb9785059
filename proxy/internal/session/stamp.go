package session

import (
	"fmt"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A proxy that has a lease of its own, or waits for it, checks every write. What
// carries a fence itself is checked with that one; the rest is stamped: checked
// with the fence of the lease. Whether the session variable holds a fence the
// check itself sees, in the database, wherever the session doesn't know for
// certain.
//
// The lease is looked at for each message, also where the transaction has been
// checked already: once it has ended, nothing more is written. What was sent by
// then is judged in the database by the token.

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

// unheldForm is the message of a refusal for want of the lease of a resource.
const unheldForm = "the lease of %q is not held here"

// UnheldResource is the resource of such a message, "" of another text.
func UnheldResource(message string) (resource string) {
	if _, err := fmt.Sscanf(message, unheldForm, &resource); err != nil {
		return ""
	}
	return resource
}

// unheld words the refusal of a write that carries no fence while the proxy has
// none for it.
func (s *Session) unheld() *wire.Error {
	lease := s.cfg.Lease
	e := &wire.Error{
		Severity: "ERROR", Code: string(fence.LeaseNotHeld),
		Message: fmt.Sprintf(unheldForm, lease.Resource()),
		Detail:  "This Wirefence is on standby: it passes reads, and writes that carry a fence of their own.",
		Hint:    "Write by way of the one that holds the lease; its /readyz?role=leader answers 200.",
	}
	if holder := lease.Holder(); holder != "" {
		e.Detail += fmt.Sprintf(" The lease was last seen held by %q.", holder)
	}
	return e
}

// unstamped words the refusal of a write that carries no fence where no check can
// be put.
func (s *Session) unstamped(command string) *wire.Error {
	if s.cfg.Lease.Fence() == "" {
		return s.unheld()
	}
	return s.refusal(fence.CannotBeFenced, command)
}
