package session

import (
	"bytes"
	"strings"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// gatherFacts returns the facts for the decision on a message.
func (s *Session) gatherFacts() *policy.Facts {
	f := &s.facts
	*f = policy.Facts{
		Shadow:            s.cfg.Mode == Shadow,
		Required:          s.cfg.required(),
		Pooled:            s.pooled,
		Schema:            s.hasSchema(),
		CanHold:           s.mayHold(),
		HoldsIfNeeded:     s.holdsIfNeeded(),
		CallsFunctions:    s.callsFunctions,
		HoldNeedsExchange: s.hold.needsExchange,

		Variable:    s.mayCarry(),
		Stamp:       s.stamp(),
		SetsGuarded: s.setsGuardedLocally(),

		Outstanding:         s.q.Ready(),
		Quiet:               s.quiet() && !s.q.CopyIn(),
		OnlyExchangePending: s.onlyExchangePending(),
		Block:               s.block(),
		Batch:               s.batch.Batch,
		Transaction:         s.tx.Transaction,
	}
	if x := &s.exchange; x.awaited {
		f.Answer, f.About = x.answer, x.about
	}
	if s.q.CopyIn() {
		f.Outstanding = 0 // the server answers nothing before the client has sent its data
	}
	if s.hold.state != policy.NoHold || s.lastCarrier != (policy.Carrier{}) {
		f.Hold = policy.Hold{State: s.hold.state, By: s.hold.by, Over: s.hold.state == policy.Held && s.over(s.at)}
		if s.at.Sub(s.lastAt) < s.busyFor() && !(s.lastCarrier == s.hold.pausedFor && s.at.Before(s.hold.pausedUntil)) &&
			strings.IndexByte(s.lastCarrier.Comment, '(') < 0 { // rows are never held
			f.Last = s.lastCarrier
		}
	}
	return f
}

// busyFor is how long a session counts as busy with a fence behind a group under it: as long
// as it would keep a hold, which pays where the hold lasts.
func (s *Session) busyFor() time.Duration {
	if s.cfg.Hold > 0 && s.db.lasting.Load() {
		return min(max(s.cfg.Hold, lastingBusy), maxIdle)
	}
	return min(s.cfg.Hold, maxIdle)
}

// stamp returns the fence of the proxy's own lease, "" without one.
func (s *Session) stamp() string {
	if s.cfg.Lease == nil {
		return ""
	}
	return s.cfg.Lease.Fence()
}

// mayCarry reports whether the session variable may hold a fence of this client's.
func (s *Session) mayCarry() bool {
	if s.pooled {
		return s.tx.localSet
	}
	return s.variable.set || s.variable.named && s.hasSchema()
}

// block returns the state of the transaction block by the last ReadyForQuery.
func (s *Session) block() policy.Block {
	switch {
	case s.q.CopyIn():
		return policy.BlockUnknown
	case s.tx.status == wire.Idle:
		return policy.NoBlock
	case s.tx.status == wire.Failed:
		return policy.FailedBlock
	}
	return policy.InBlock
}

// unfenced reports whether the session carries no fence, needs none, sets none and holds nothing. Its texts
// need no lexing unless they have a word that could carry a fence or set one.
func (s *Session) unfenced() bool {
	return !s.mayCarry() && !s.cfg.required() && !s.setsGuardedLocally() && !s.tx.Fenced && s.hold.state == policy.NoHold && s.lastCarrier == (policy.Carrier{})
}

// underHold reports whether the hold covers a plain statement with this fence in its
// comments, and needn't be given back or taken anew. Such a statement needs no decision.
func (s *Session) underHold(comment string) bool {
	h := &s.hold
	if h.state != policy.Held || h.by.Comment != comment || s.batch.Taken || s.q.CopyIn() {
		return false
	}
	if comment == "" && h.by != (policy.Carrier{Variable: s.mayCarry(), Stamp: s.stamp()}) {
		return false
	}
	return !s.over(s.at)
}

// covered reports whether a statement needs no decision, and what covers it: nothing, in a session
// that carries nothing and by a statement that changes nothing, or the hold for its fence.
func (s *Session) covered(st *statement) (under cover, ok bool) {
	switch {
	case st.text.Flags != 0:
		return uncounted, false
	case st.fence == "" && !st.text.Class.Controls() && s.unfenced():
		return underNothing, true
	case st.text.Class == sqltext.Ordinary && !st.empty && s.underHold(st.fence):
		return underHold, true
	}
	return uncounted, false
}

// noteCovered records that a statement is forwarded without a decision.
func (s *Session) noteCovered(under cover) {
	if under == underHold {
		s.tx.Cover(s.hold.by)
		s.tx.Judged = true
		s.lastCarrier, s.lastAt = s.hold.by, s.at
	}
}

// scan reads a text, and returns its one statement; empty for several or none. A text that is
// plain needs no lexing.
func (s *Session) scan(body []byte) (*sqltext.Result, statement) {
	st := statement{trace: s.tracing}
	if sqltext.Plain(body) {
		st.text.Class = sqltext.Ordinary
		s.plain.Statements = s.asStatements(&st)
		s.plain.Statements[0].End = int32(len(bytes.TrimSuffix(body, []byte(";"))))
		return &s.plain, st
	}
	result := s.scanner.Scan(body, s.options)
	st.fence, st.empty = result.Fence, len(result.Statements) == 0
	if !st.empty {
		st.text.Class, st.text.Flags = result.Statements[0].Class, result.Statements[0].Flags
	}
	return result, st
}
