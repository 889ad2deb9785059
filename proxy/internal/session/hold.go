package session

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A hold is the lock of a fence's resources at session level: while the server has it, no
// takeover can commit, so the session's statements need no checks. policy.Decide decides
// when to take it and to give it back; this file keeps its state. It lasts until a takeover
// wants it: the Databases tell so. Without them it lasts for Config.Hold, as from the last
// proof that nobody wants it.

// hold is the state of the session's hold.
type hold struct {
	state policy.HoldState // changed by change alone
	by    policy.Carrier
	// number marks the locks of this session's holds, so that no other party in the same
	// backend gives them back: client code that holds too, or another proxy.
	number int32
	asked  time.Time   // when the last call about it was sent, which is its first proof
	locks  []*heldLock // of its resources, until it is taken anew or given back
	// pausedFor is the carrier of the last hold that could not be had. The session doesn't
	// ask for it again before pausedUntil, unless a statement needs it.
	pausedFor   policy.Carrier
	pausedUntil time.Time
	// needsExchange says that the session's transactions aren't READ COMMITTED by default.
	needsExchange bool
	failures      int // to give it back, in a row
}

// pause is how long a session doesn't ask for a hold that could not be had, and
// wantedPause if that may be had soon: a takeover is under way, another session asked at
// the same moment, or the token had to be recorded first.
const (
	pause       = time.Second
	wantedPause = 100 * time.Millisecond
)

// maxIdle is how long a session may run nothing before it gives its hold back: pools keep
// many idle sessions.
const maxIdle = time.Second

// lastingBusy is the least time for which a session counts as busy where holds last. Asking
// for a resource 50 times a second costs the server as much as some three checks.
const lastingBusy = 250 * time.Millisecond

// maxRoundTrip is the longest round trip to the server at which a session holds between its
// statements. A takeover ends the backend of a session that holds and has been idle for 250
// ms; that must be long enough to ask whether the hold is wanted, and to give it back.
const maxRoundTrip = 75 * time.Millisecond

// lullFraction of Config.Hold is how long a session must have sent no group before the
// proxy gives back a hold that nobody is known to want. The next group of a busy session
// takes it anew, which costs less than giving it back and taking it.
const lullFraction = 4

// change is the only place that changes the state of the hold.
func (h *hold) change(e policy.HoldEvent) {
	h.state = h.state.Next(e)
	if e == policy.Asks || e == policy.GivesBack {
		release(h.locks)
		h.locks = nil
	}
}

// over reports whether the hold is to be given back, or taken anew: a takeover wants it, the
// last proof that none does is older than period, or the session may not hold any more.
func (s *Session) over(now time.Time) bool {
	h := &s.hold
	asked := s.databases.clock(h.asked)
	proof := asked
	for i, lock := range h.locks {
		at := max(asked, lock.proven.Load())
		if i == 0 || at < proof {
			proof = at // of several resources the oldest one counts
		}
	}
	return h.wanted() || s.databases.clock(now)-proof >= s.cfg.Hold || !s.mayHold()
}

// wanted reports whether a takeover waits for the hold.
func (h *hold) wanted() bool {
	for _, lock := range h.locks {
		if lock.wanted.Load() {
			return true
		}
	}
	return false
}

// mayHold reports whether the session can take a hold.
func (s *Session) mayHold() bool {
	return s.cfg.Hold > 0 && s.cfg.Mode == Enforce && s.hasSchema() && !s.pooled && !s.standby && !s.walsender &&
		!s.db.unlocks.Load()
}

// holdsIfNeeded reports whether the session takes a hold only for a statement that a check
// can't cover: the server is far away.
func (s *Session) holdsIfNeeded() bool { return s.roundTrip > maxRoundTrip }

// doubtHold records that the hold no longer counts: a message that is being sent may
// release it, or change the fence. The server may still have it.
func (p *protection) doubtHold() { p.hold.change(policy.Doubts) }

// verdict is the answer of wirefence.check or wirefence.proxy_hold.
type verdict uint8

const (
	checked  verdict = iota // by check also null; by proxy_hold once and apart
	notNow                  // by proxy_hold checked
	held                    // for the session
	shadowed                // every resource is in shadow mode
	unfenced                // no fence, where one is required
	none                    // no fence
)

// readVerdict reads an answer. keys are those of the locks that are held.
func (s *Session) readVerdict(msg []byte) (v verdict, keys []lockKey) {
	column, null := wire.FirstColumn(msg)
	word, rest, _ := strings.Cut(string(column), " ")
	switch {
	case null:
		return checked, nil
	case word == "held":
		server, list, _ := strings.Cut(rest, " ")
		for text := range strings.SplitSeq(list, ",") {
			key, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return checked, nil
			}
			keys = append(keys, lockKey{server, key})
		}
		return held, keys
	case word == "none":
		return none, nil
	case word == "unfenced" || word == "on": // without the schema, on
		s.noteReadOnly()
		return unfenced, nil
	case word == "shadow":
		return shadowed, nil
	case word == "checked":
		return notNow, nil
	case word == "apart":
		s.hold.needsExchange = true
	case strings.HasSuffix(word, ":"):
		s.reportRefusal(Refusal{State: fence.SQLState(word[:len(word)-1]), Message: rest, Shadow: true, Noted: s.cfg.Mode == Enforce}, s.answeredTrace())
		return shadowed, nil
	}
	return checked, nil
}

// noteReadOnly records that a check has made the transaction READ ONLY.
func (s *Session) noteReadOnly() {
	s.tx.madeReadOnly = s.cfg.Mode == Enforce && !s.standby
	s.tx.shadowReadOnly = s.cfg.Mode == Shadow
}

// noteNone records that a check has found no fence. If a text that resets is all that may have
// changed the variable since the last one, the session carries nothing, unless a reset brings back
// the fence of its login.
func (s *Session) noteNone(v verdict, behindReset bool) {
	if v == none && behindReset && s.variable.reset && !s.login.fenced {
		s.variable = variable{}
		if s.lastCarrier.Variable {
			s.lastCarrier = policy.Carrier{}
		}
	}
}

// noteHeld records the server's answer to the question for the hold.
func (s *Session) noteHeld(v verdict, keys []lockKey) {
	h := &s.hold
	if v == held {
		h.change(policy.Grants)
		if h.state == policy.Held {
			h.locks = s.db.retain(keys, h.locks[:0])
		}
		return
	}
	h.change(policy.Declines)
	h.pausedFor, h.pausedUntil = h.by, s.at.Add(pause)
	if v == notNow {
		h.pausedUntil = s.at.Add(wantedPause)
	}
}

// finishTake handles the end of the exchange that asked for the hold. The answer counts
// only here: a commit that fails, fails behind its row.
func (s *Session) finishTake() {
	x := &s.exchange
	s.noteNone(x.verdict, true)
	switch {
	case x.err != nil || !x.answered:
		s.hold.change(policy.AskFails)
		s.hold.pausedFor, s.hold.pausedUntil = s.hold.by, s.at.Add(pause)
		x.answer, x.refusal = policy.Fails, x.err
		s.noteSchemaGone("3F000")
		return
	case x.verdict == held:
		x.answer = policy.Granted
	default:
		x.answer = answerOf(x.verdict)
	}
	s.noteHeld(x.verdict, x.keys)
}

// finishAsk handles the end of an exchange that asked for a fence, or what it would get.
func (s *Session) finishAsk() {
	x := &s.exchange
	x.answer = answerOf(x.verdict)
	switch {
	case x.err != nil || !x.answered:
		x.answer, x.refusal = policy.Fails, x.err
	case x.answer != policy.Empty && s.cfg.Mode == Shadow:
		x.answer = policy.Observed
	case !s.hasSchema() && x.about.Stamp != "":
		x.answer = policy.Unheld
	}
}

func answerOf(v verdict) policy.Answer {
	switch v {
	case none, unfenced:
		return policy.Empty
	case shadowed:
		return policy.Observed
	}
	return policy.Unheld
}

// finishGiveBack handles the end of the exchange that gave the hold back.
func (s *Session) finishGiveBack() {
	if s.exchange.answered && s.exchange.err == nil {
		s.hold.failures = 0
		return
	}
	s.exchange.answer, s.exchange.refusal = policy.Stuck, s.exchange.err // don't try again ahead of the same message
	if s.noteSchemaGone("3F000", "42883") {
		return
	}
	s.hold.failures++
	s.hold.change(policy.GiveBackFails)
}

// noteSchemaGone records that the schema was dropped, if the last exchange says so by one of these
// SQLSTATEs: nothing is held then.
func (s *Session) noteSchemaGone(states ...string) bool {
	if err := s.exchange.err; err == nil || !slices.Contains(states, err.Code) {
		return false
	}
	s.schema = absent
	s.db.schema.Store(false)
	s.hold.change(policy.GivesBack)
	return true
}

// atBoundary reports whether the proxy may send an exchange of its own: no transaction is
// open, nothing is outstanding, and no message of the client waits, which may wait for this
// hold; Decide then gives it back if need be.
func (s *Session) atBoundary() bool {
	return s.Idle() && !s.skipping && !s.inputWaits && s.fatal == nil && !s.fatalSeen && !s.terminated
}

// giveBackAtOnce gives a hold back that can't wait for the session's next group: a takeover
// wants it, the session holds only for what needs it, or giving it back has failed.
func (s *Session) giveBackAtOnce() {
	h := &s.hold
	due := h.wanted() || h.state == policy.Held && s.holdsIfNeeded() || h.state == policy.Doubtful && h.failures == 1
	if due && s.atBoundary() {
		s.toServer = s.appendGiveBack(s.toServer)
	}
}

// HoldDeadline returns when to call ReleaseHold; zero without a hold.
func (s *Session) HoldDeadline() time.Time {
	if s.hold.state != policy.Held && s.hold.state != policy.Doubtful {
		return time.Time{}
	}
	return s.cfg.Clock().Add(s.cfg.Hold)
}

// ReleaseHold gives back a hold that an idle session needn't keep. send says that there are
// bytes for the server, for TakeToServer or the next FromClient. next is when to call it
// again; zero without a hold. A driver that knows that a hold is wanted calls it at once.
func (s *Session) ReleaseHold() (send bool, next time.Time) {
	s.at = s.cfg.Clock()
	h, now := &s.hold, s.at
	idle := now.Sub(s.lastAt)
	due := h.wanted() ||
		// Where giving it back fails again and again, a takeover has to find the session idle.
		h.state == policy.Doubtful && (h.failures < 2 || now.Sub(h.asked) >= maxIdle) ||
		h.state == policy.Held && (idle >= maxIdle || idle >= s.cfg.Hold/lullFraction && s.over(now))
	if due && s.atBoundary() {
		s.toServer = s.appendGiveBack(s.toServer)
		return true, time.Time{}
	}
	return false, s.HoldDeadline()
}

// Leave releases what the session has in Databases. Call it once, when the session is over.
func (s *Session) Leave() {
	release(s.hold.locks)
	s.hold.locks = nil
	if s.db != nil {
		s.db.leave()
	}
}
