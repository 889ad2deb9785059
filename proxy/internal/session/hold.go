package session

import (
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A hold is the lock of a fence's resources at session level: while the server has it, no
// takeover can commit, so the session's statements need no checks. policy.Decide decides
// when to take it and to give it back; this file keeps its state. It counts from its
// successful answer on, until the proxy sends a message that may release it or change the
// session variable.

// hold is the state of the session's hold.
type hold struct {
	state policy.HoldState
	by    policy.Carrier
	since time.Time // when the proxy asked for it
	// invalidated says that a message behind the request may end the hold, so its
	// successful answer doesn't count.
	invalidated bool
	// pausedFor is the carrier of the last hold that failed. The session doesn't ask for it
	// again before pausedUntil, unless a statement needs it.
	pausedFor   policy.Carrier
	pausedUntil time.Time
	// bySimpleQuery says that the session's default isolation level isn't READ COMMITTED:
	// the hold needs a simple query, which can set the level.
	bySimpleQuery bool
	// retried says that the current message has asked for it again, after a check.
	retried bool
}

// pauseFactor times Config.Hold is the pause after a hold that failed.
const pauseFactor = 20

// mayHold reports whether the session can take a hold ahead of a message.
func (s *Session) mayHold(m *policy.Message) bool {
	return s.cfg.Hold > 0 && s.cfg.Mode == Enforce && s.hasSchema() && !s.pooled && !s.standby && !s.walsender &&
		!s.chainsTransactions && !s.db.interferes.Load() && s.storedFlags&(sqltext.SetsVariable|sqltext.Unlocks) == 0 &&
		!(s.hold.bySimpleQuery && !m.DropsUnnamed && s.unnamedInUse())
}

// unnamedInUse reports whether a simple query of the proxy's own would drop an
// unnamed statement of the client's.
func (s *Session) unnamedInUse() bool {
	_, ok, _ := s.prepared.Find(nil, 0)
	return ok
}

// holdFacts returns the hold's state for policy.
func (s *Session) holdFacts(now time.Time) policy.Hold {
	h := policy.Hold{State: s.hold.state, By: s.hold.by}
	h.Over = s.hold.state == policy.Held && now.Sub(s.hold.since) >= s.cfg.Hold
	return h
}

// doubtHold records that the hold no longer counts: a message that is being sent may
// release it, or change the fence. The server may still have it.
func (s *Session) doubtHold() {
	switch s.hold.state {
	case policy.Held:
		s.hold.state = policy.Doubtful
	case policy.Taking:
		s.hold.invalidated = true
	}
}

// finishTake handles the end of the exchange that asked for the hold.
func (s *Session) finishTake() {
	h, x := &s.hold, &s.exchange
	s.answer, s.answerErr = policy.NoAnswer, nil
	switch {
	case x.err != nil && !h.bySimpleQuery && x.err.Code == wrongIsolation:
		// The default isolation level isn't READ COMMITTED: retry by a simple query.
		h.bySimpleQuery, h.state = true, policy.Doubtful
		return
	case x.err != nil:
		s.answer, s.answerErr, h.state = policy.TakeFails, x.err, policy.Doubtful
	case !x.answered || h.invalidated:
		h.state = policy.Doubtful
	case x.outcome == "t":
		s.answer, h.state = policy.Granted, policy.Held
		return
	case h.by.Variable && !x.variableFilled && h.by.Stamp == "":
		s.answer, h.state = policy.Empty, policy.NoHold
	case h.retried:
		s.answer, h.state = policy.Unholdable, policy.NoHold
	default:
		s.answer, h.state = policy.Unheld, policy.NoHold
	}
	h.pausedFor, h.pausedUntil = h.by, s.cfg.Clock().Add(pauseFactor*s.cfg.Hold)
}

// finishTakeInGroup handles the answer of hold_or_check.
func (s *Session) finishTakeInGroup(msg []byte) {
	h := &s.hold
	verdict, _ := wire.FirstColumn(msg)
	switch {
	case h.state != policy.Taking:
	case h.invalidated:
		h.state = policy.Doubtful
	case string(verdict) == "held":
		h.state = policy.Held
	case string(verdict) == "apart":
		h.bySimpleQuery, h.state = true, policy.NoHold
	default:
		h.state = policy.NoHold
		h.pausedFor, h.pausedUntil = h.by, s.cfg.Clock().Add(pauseFactor*s.cfg.Hold)
	}
}

// Config.Hold/lullFraction is how long a session must have sent no group before the proxy
// gives its hold back. The next group of a busy session takes the hold anew, which costs
// less than giving it back and taking it.
const lullFraction = 4

// wrongIsolation is the SQLSTATE of wirefence.hold for an isolation level other than READ
// COMMITTED.
const wrongIsolation = string(fence.CannotBeFenced)

// appendObserve appends the query for the verdict on a statement that can't share its
// transaction with a check: in shadow mode, and after a hold has failed, which may be
// because its resources are in shadow mode.
func (s *Session) appendObserve(dst []byte, by *policy.Carrier) []byte {
	if s.cfg.Mode == Enforce {
		return s.cfg.call.appendBeforeHold(dst, by)
	}
	return s.cfg.call.appendCheck(dst, s.checkFor(by), by)
}

// finishObserve handles the end of that exchange.
func (s *Session) finishObserve() {
	switch {
	case s.exchange.err != nil:
		s.answer, s.answerErr = policy.TakeFails, s.exchange.err
	case s.exchange.outcome == carriesNone || s.exchange.outcome == "none":
		s.answer = policy.Empty
	case s.cfg.Mode == Shadow || s.exchange.outcome == "shadow" || strings.HasPrefix(s.exchange.outcome, "WF"):
		s.answer = policy.Observed
	case !s.hold.retried && s.exchange.outcome == "checked":
		// The check may have recorded the token, which a hold needs: retry.
		s.hold.retried, s.answer = true, policy.Recorded
	default:
		s.answer = policy.Unholdable
	}
}

// finishGiveBack handles the end of the exchange that gave the hold back.
func (s *Session) finishGiveBack() {
	if !s.exchange.answered && s.hold.state == policy.NoHold {
		s.hold.state = policy.Doubtful
	}
	if s.exchange.err != nil && s.txStatus == wire.Failed {
		// In a chained transaction it has aborted what is the client's.
		s.answer, s.answerErr = policy.GiveBackFails, s.exchange.err
	}
}

// HoldDeadline returns when to call ReleaseHold; zero without a hold.
func (s *Session) HoldDeadline() time.Time {
	switch s.hold.state {
	case policy.Held:
		return s.hold.since.Add(s.cfg.Hold)
	case policy.Doubtful:
		return s.cfg.Clock().Add(s.cfg.Hold)
	}
	return time.Time{}
}

// ReleaseHold gives back a hold whose period is over, if the session is idle. send says
// that there are bytes for the server, for TakeToServer or the next FromClient. next is
// when to call it again; zero without a hold.
func (s *Session) ReleaseHold() (send bool, next time.Time) {
	now := s.cfg.Clock()
	if s.fatal != nil || s.fatalSeen || s.terminated {
		return false, time.Time{}
	}
	over := s.holdFacts(now).Over || s.hold.state == policy.Doubtful
	if pause := s.lastAt.Add(s.cfg.Hold / lullFraction); over && s.hold.state == policy.Held && pause.After(now) {
		return false, pause
	}
	// A message that waits may wait for this hold; Decide then gives it back if need be.
	if over && s.quiet() && !s.inputWaits && s.txStatus == wire.Idle && s.atMessageStart() && len(s.toServer) == 0 {
		s.toServer = s.appendGiveBack(s.toServer)
		return true, time.Time{}
	}
	if s.hold.state == policy.NoHold {
		return false, time.Time{}
	}
	if until := s.HoldDeadline(); until.After(now) {
		return false, until
	}
	return false, now.Add(s.cfg.Hold)
}
