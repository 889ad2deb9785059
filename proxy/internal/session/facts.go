package session

import (
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// know puts together what is known as a message comes.
func (s *Session) know(m *policy.Message) *policy.Facts {
	f := &s.facts
	stamp := ""
	if s.cfg.Lease != nil {
		stamp = s.cfg.Lease.Fence()
	}
	*f = policy.Facts{
		Shadow:   s.cfg.Mode == Shadow,
		Required: s.cfg.required(),
		Pooled:   s.pooled,
		Schema:   s.hasSchema(),
		Holds:    s.mayHold(m),
		Apart:    s.hold.simple,
		Major:    s.major,

		Variable: s.mayCarry(),
		Stamp:    stamp,

		Outstanding: s.q.Ready(),
		Quiet:       s.quiet() && !s.q.CopyIn(),
		Unsteady:    s.db.interferes.Load() || s.stored.Has(sqltext.SetsVariable),
		Releases:    s.db.interferes.Load(),
		Exchanging:  s.exchanging(),
		Block:       s.block(),
		Batch:       s.batch.Batch,
		Fresh:       s.fresh,
		Fenced:      s.fenced,
		Answer:      s.answer,
		NamedFence:  s.namedFence,
	}
	if s.q.CopyIn() {
		f.Outstanding = 0 // none comes before the client has sent its data
	}
	if s.hold.state != policy.NoHold || s.last != (policy.Carrier{}) {
		now := s.cfg.Clock()
		f.Hold = s.heldNow(now)
		if now.Sub(s.lastAt) < s.cfg.Hold && !(s.last == s.hold.pausedBy && now.Before(s.hold.pausedUntil)) {
			f.Last = s.last
		}
	}
	return f
}

// mayCarry reports whether the session variable may hold a fence of this client's.
func (s *Session) mayCarry() bool {
	if s.pooled {
		return s.localSet
	}
	return s.armed || s.db.interferes.Load()
}

// block is the state of the transaction block as of the last ReadyForQuery.
func (s *Session) block() policy.Block {
	switch {
	case s.q.CopyIn():
		return policy.BlockUnknown
	case s.tx == wire.Idle:
		return policy.NoBlock
	case s.tx == wire.Failed:
		return policy.FailedBlock
	}
	return policy.InBlock
}

// untouched reports whether a text can be forwarded without being read: the session
// carries nothing, and nothing in the text can be a fence or bring one about.
func (s *Session) untouched(body []byte) bool {
	if s.mayCarry() || s.cfg.required() || s.namedFence || s.fenced || s.pooled || s.hold.state != policy.NoHold || sqltext.Mentions(body) {
		return false
	}
	if s.last == (policy.Carrier{}) {
		return true
	}
	if s.cfg.Clock().Sub(s.lastAt) >= s.cfg.Hold {
		s.last = policy.Carrier{}
		return true
	}
	return false
}
