package session

import (
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// gatherFacts returns the facts for the decision on a message.
func (s *Session) gatherFacts(m *policy.Message) *policy.Facts {
	f := &s.facts
	stamp := ""
	if s.cfg.Lease != nil {
		stamp = s.cfg.Lease.Fence()
	}
	*f = policy.Facts{
		Shadow:            s.cfg.Mode == Shadow,
		Required:          s.cfg.required(),
		Pooled:            s.pooled,
		Schema:            s.hasSchema(),
		CanHold:           s.mayHold(m),
		HoldNeedsExchange: s.hold.bySimpleQuery,
		Major:             s.major,

		Variable: s.mayCarry(),
		Stamp:    stamp,

		Outstanding:         s.q.Ready(),
		Quiet:               s.quiet() && !s.q.CopyIn(),
		FenceMayChange:      s.db.interferes.Load() || s.storedFlags.Has(sqltext.SetsVariable),
		HoldMayEnd:          s.db.interferes.Load(),
		OnlyExchangePending: s.onlyExchangePending(),
		Block:               s.block(),
		Batch:               s.batch.Batch,
		FreshChain:          s.freshChain,
		Fenced:              s.fenced,
		GivingBack:          s.exchange.by == givesBack,
		Answer:              s.answer,
		NamedFence:          s.namedFence,
	}
	if s.q.CopyIn() {
		f.Outstanding = 0 // the server answers nothing before the client has sent its data
	}
	if s.hold.state != policy.NoHold || s.lastCarrier != (policy.Carrier{}) {
		now := s.cfg.Clock()
		f.Hold = s.holdFacts(now)
		if now.Sub(s.lastAt) < s.cfg.Hold && !(s.lastCarrier == s.hold.pausedFor && now.Before(s.hold.pausedUntil)) {
			f.Last = s.lastCarrier
		}
	}
	return f
}

// mayCarry reports whether the session variable may hold a fence of this client's.
func (s *Session) mayCarry() bool {
	if s.pooled {
		return s.localSet
	}
	return s.variableMayCarry || s.db.interferes.Load()
}

// block returns the state of the transaction block by the last ReadyForQuery.
func (s *Session) block() policy.Block {
	switch {
	case s.q.CopyIn():
		return policy.BlockUnknown
	case s.txStatus == wire.Idle:
		return policy.NoBlock
	case s.txStatus == wire.Failed:
		return policy.FailedBlock
	}
	return policy.InBlock
}

// canForwardUnread reports whether a text needs no lexing: the session carries no fence,
// and the text has no word that could carry or set one.
func (s *Session) canForwardUnread(body []byte) bool {
	if s.mayCarry() || s.cfg.required() || s.namedFence || s.fenced || s.pooled || s.hold.state != policy.NoHold || sqltext.Mentions(body) {
		return false
	}
	if s.lastCarrier == (policy.Carrier{}) {
		return true
	}
	if s.cfg.Clock().Sub(s.lastAt) >= s.cfg.Hold {
		s.lastCarrier = policy.Carrier{}
		return true
	}
	return false
}
