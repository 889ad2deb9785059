package session

import (
	"fmt"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// adminShutdown is the SQLSTATE with which pg_terminate_backend ends a session. A
// takeover and a revocation call it for what is in their way, but a shutdown of the server
// and an operator end sessions with the same words: which it was can't be told from them.
const adminShutdown = "57P01"

// Ending is the end of a session by the server while it was under a fence.
type Ending struct {
	State, Message string
	// Resources are those of the fence; none where only the server knows them.
	Resources []fence.Resource
}

// underFence reports whether the server may hold a fence's locks for the session.
func (s *Session) underFence() bool {
	return s.cfg.Mode == Enforce && s.phase == serving && (s.fenced || s.hold.state != policy.NoHold)
}

// ended handles a FATAL. Where a takeover may be its cause, the client is told so, by
// DETAIL and HINT, which the server leaves empty. It reports whether the message passes
// as it is.
func (s *Session) ended(msg []byte, out *Out) (passes bool) {
	s.failed = true
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
	e.Hint = "wirefence history tells whether it was that. Then a retry with the same token is refused with WF001: acquire the lease anew."
	mark := len(out.own)
	own, err := e.Encode(out.own)
	if err != nil {
		return true
	}
	out.own = own
	out.put(mark)
	return false
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

// fencedResources are those of the fence that the session was under last. What a
// variable holds is known from the startup packet, as long as nothing may have set it.
func (s *Session) fencedResources() (all []fence.Resource) {
	by := s.last
	if s.hold.state != policy.NoHold {
		by = s.hold.by
	}
	text := by.Comment
	if text == "" && by.Variable && !s.db.interferes.Load() {
		text = s.startupFence
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
