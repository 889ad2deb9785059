package session

import (
	"fmt"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// adminShutdown is the SQLSTATE with which pg_terminate_backend ends a session. Takeovers
// and revocations call it for sessions in their way; a shutdown of the server or an
// operator ends sessions with the same SQLSTATE and message.
const adminShutdown = "57P01"

// Ending is the end of a session by the server while it was under a fence.
type Ending struct {
	State, Message string
	// Resources are those of the fence; none if only the server knows them.
	Resources []fence.Resource
}

// underFence reports whether the server may hold a fence's locks for the session.
func (s *Session) underFence() bool {
	return s.cfg.Mode == Enforce && s.phase == serving && (s.tx.Fenced || s.hold.state != policy.NoHold)
}

// handleFatal handles a FATAL of the server. If a takeover may be its cause, DETAIL and
// HINT, which the server leaves empty, say so. It reports whether the message passes
// unchanged.
func (s *Session) handleFatal(msg []byte, out *Out) (passes bool) {
	s.fatalSeen = true
	if wire.ErrorCode(msg) != adminShutdown || !s.underFence() {
		return true
	}
	e, err := wire.DecodeError(msg)
	if err != nil {
		return true
	}
	end := Ending{State: e.Code, Message: e.Message, Resources: s.fencedResources()}
	s.events.Ended(end)
	if e.Detail != "" || e.Hint != "" {
		return true
	}
	e.Detail = fmt.Sprintf("The session was under a fence%s, and may have been in the way of a newer token: a takeover or a revocation ends such sessions.", ofResources(end.Resources))
	e.Hint = "See wirefence history for the cause. After a takeover or a revocation a retry with the same token is refused with WF001: acquire the lease again."
	return !out.encode(e)
}

func ofResources(all []fence.Resource) string {
	var names []string
	for _, r := range all {
		names = append(names, `"`+strings.ReplaceAll(string(r), `"`, `""`)+`"`)
	}
	if len(names) == 0 {
		return ""
	}
	return " of " + strings.Join(names, ", ")
}

// fencedResources returns the resources of the last fence that the session was under. The
// variable's value is known only from the login, while nothing may have set it.
func (s *Session) fencedResources() (all []fence.Resource) {
	by := s.lastCarrier
	if s.hold.state != policy.NoHold {
		by = s.hold.by
	}
	text := by.Comment
	if text == "" && by.Variable {
		text = s.variable.login
	}
	if text == "" {
		text = by.Stamp
	}
	f, err := fence.ParseWithDefault(text, s.cfg.DefaultResource)
	if err != nil {
		return nil
	}
	for _, pair := range f.Pairs() {
		all = append(all, pair.Resource)
	}
	return all
}
