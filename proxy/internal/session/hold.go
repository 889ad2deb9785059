package session

import (
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A hold is the lock of a fence's resources at session level: while the server has
// it, no takeover can commit, so what the session does needs no checks. When it is
// taken and given back is policy's to say (policy.Decide); here is what is known of
// it. It counts from its successful answer on, and no longer than until something is
// sent that may release it, or may change the session variable.

// hold is the state of the session's hold.
type hold struct {
	state policy.HoldState
	by    policy.Carrier
	since time.Time // when it was asked for
	// spoiled says that something was sent behind the question for which the answer
	// no longer counts.
	spoiled bool
	// pausedBy isn't held before pausedUntil, unless a statement needs it: the last
	// answer was that it can't be.
	pausedBy    policy.Carrier
	pausedUntil time.Time
	// simple says that a hold must be asked for by a simple query, which can choose
	// the isolation level: the session's default isn't READ COMMITTED.
	simple bool
	// retried says that it was asked for again behind a check, for one message.
	retried bool
}

// pauses is how many times the period of a hold pass before one that can't be had is
// asked for again.
const pauses = 20

// mayHold reports whether the session can take a hold ahead of a message.
func (s *Session) mayHold(m *policy.Message) bool {
	return s.cfg.Hold > 0 && s.cfg.Mode == Enforce && s.hasSchema() && !s.pooled && !s.standby && !s.walsender &&
		!s.chains && !s.db.interferes.Load() && s.stored&(sqltext.SetsVariable|sqltext.Unlocks) == 0 &&
		!(s.hold.simple && !m.DropsUnnamed && s.unnamedInUse())
}

// unnamedInUse reports whether a simple query of the proxy's own would drop an
// unnamed statement of the client's.
func (s *Session) unnamedInUse() bool {
	_, ok, _ := s.prepared.Find(nil, 0)
	return ok
}

// held returns the hold as policy wants to know it.
func (s *Session) heldNow(now time.Time) policy.Hold {
	h := policy.Hold{State: s.hold.state, By: s.hold.by}
	h.Over = s.hold.state == policy.Held && now.Sub(s.hold.since) >= s.cfg.Hold
	return h
}

// uncount notes that the hold no longer counts: what is being sent may release it or
// change the fence that it is for. The server may have it still.
func (s *Session) uncount() {
	switch s.hold.state {
	case policy.Held:
		s.hold.state = policy.Doubtful
	case policy.Taking:
		s.hold.spoiled = true
	}
}

// taken takes in the end of the exchange that asked for the hold.
func (s *Session) taken() {
	h, x := &s.hold, &s.own
	s.answer, s.answerErr = policy.NoAnswer, nil
	switch {
	case x.err != nil && !h.simple && x.err.Code == wrongIsolation:
		// The session's default isolation level isn't READ COMMITTED: once more.
		h.simple, h.state = true, policy.Doubtful
		return
	case x.err != nil:
		s.answer, s.answerErr, h.state = policy.TakeFails, x.err, policy.Doubtful
	case !x.answered || h.spoiled:
		h.state = policy.Doubtful
	case x.outcome == "t":
		s.answer, h.state = policy.Granted, policy.Held
		return
	case h.by.Variable && !x.filled && h.by.Stamp == "":
		s.answer, h.state = policy.Empty, policy.NoHold
	case h.retried:
		s.answer, h.state = policy.Unholdable, policy.NoHold
	default:
		s.answer, h.state = policy.Unheld, policy.NoHold
	}
	h.pausedBy, h.pausedUntil = h.by, s.cfg.Clock().Add(pauses*s.cfg.Hold)
}

// takenWithin takes in what a check says that asked for the hold.
func (s *Session) takenWithin(msg []byte) {
	h := &s.hold
	verdict, _ := wire.FirstColumn(msg)
	switch {
	case h.state != policy.Taking:
	case h.spoiled:
		h.state = policy.Doubtful
	case string(verdict) == "held":
		h.state = policy.Held
	case string(verdict) == "apart":
		h.simple, h.state = true, policy.NoHold
	default:
		h.state = policy.NoHold
		h.pausedBy, h.pausedUntil = h.by, s.cfg.Clock().Add(pauses*s.cfg.Hold)
	}
}

// lull is the part of the period of a hold for which a session must have sent no group
// before its hold is given back: the next group of one that is busy takes it anew, which
// costs less than to give it back and take it.
const lull = 4

// wrongIsolation is the SQLSTATE with which wirefence.hold refuses an isolation level
// other than READ COMMITTED.
const wrongIsolation = string(fence.CannotBeFenced)

// appendObserve appends the question by which is told what a statement that can't share
// its transaction with a check would be refused for: in shadow mode, and where the fence
// wasn't held, which may be because its resources are in shadow mode.
func (s *Session) appendObserve(dst []byte, by *policy.Carrier) []byte {
	if s.cfg.Mode == Enforce {
		return s.cfg.call.appendBeforeHold(dst, by)
	}
	return s.cfg.call.appendCheck(dst, s.checkFor(by), by)
}

// observed takes in the end of such a check.
func (s *Session) observed() {
	switch {
	case s.own.err != nil:
		s.answer, s.answerErr = policy.TakeFails, s.own.err
	case s.own.outcome == carriesNone || s.own.outcome == "none":
		s.answer = policy.Empty
	case s.cfg.Mode == Shadow || s.own.outcome == "shadow" || strings.HasPrefix(s.own.outcome, "WF"):
		s.answer = policy.Observed
	case !s.hold.retried && s.own.outcome == "checked":
		// The check may have recorded the token, without which nothing is held.
		s.hold.retried, s.answer = true, policy.Recorded
	default:
		s.answer = policy.Unholdable
	}
}

// givenBack takes in the end of the exchange that gave the hold back.
func (s *Session) givenBack() {
	if !s.own.answered && s.hold.state == policy.NoHold {
		s.hold.state = policy.Doubtful
	}
}

// HoldUntil returns when Tick is to be called; zero means that nothing is held.
func (s *Session) HoldUntil() time.Time {
	switch s.hold.state {
	case policy.Held:
		return s.hold.since.Add(s.cfg.Hold)
	case policy.Doubtful:
		return s.cfg.Clock().Add(s.cfg.Hold)
	}
	return time.Time{}
}

// Tick gives back a hold whose time is over and that nobody uses now. send says that
// there are bytes for the server, which TakeToServer or the next FromClient brings.
// next is when to come again; zero means that nothing is held.
func (s *Session) Tick() (send bool, next time.Time) {
	now := s.cfg.Clock()
	if s.farewell != nil || s.failed || s.done {
		return false, time.Time{}
	}
	over := s.heldNow(now).Over || s.hold.state == policy.Doubtful
	if pause := s.lastAt.Add(s.cfg.Hold / lull); over && s.hold.state == policy.Held && pause.After(now) {
		return false, pause
	}
	// A message that waits may wait for this hold: what becomes of it is decided there.
	if over && s.quiet() && !s.held && s.tx == wire.Idle && s.between() && len(s.toward) == 0 {
		s.toward = s.appendGiveBack(s.toward)
		return true, time.Time{}
	}
	if s.hold.state == policy.NoHold {
		return false, time.Time{}
	}
	if until := s.HoldUntil(); until.After(now) {
		return false, until
	}
	return false, now.Add(s.cfg.Hold)
}
