package session

import (
	"net/netip"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Idle reports whether the session is between transactions, with nothing
// outstanding and no message half sent.
func (s *Session) Idle() bool {
	return s.phase == serving && s.tx.status == wire.Idle && s.q.Len() == 0 && !s.batch.Open && len(s.toServer) == 0 && s.atMessageStart()
}

// MayEnd reports whether the session can end without aborting a transaction: it is idle,
// or it streams replication, which has neither transactions nor an end.
func (s *Session) MayEnd() bool { return s.Idle() || s.streaming && s.serverLeft == 0 }

// Running reports whether the server may be at work for the client. Then it doesn't notice
// a closed connection until the statement ends or a cancel request comes.
func (s *Session) Running() bool { return s.phase == serving && s.q.Len() > 0 }

// InTransaction reports whether a transaction block is open, as of the last
// ReadyForQuery.
func (s *Session) InTransaction() bool { return s.tx.status != wire.Idle }

// End ends the session with this error. The first one counts; after a FATAL of the server
// none does.
func (s *Session) End(e wire.Error) {
	if s.fatal == nil && !s.fatalSeen {
		e.Severity = "FATAL"
		s.fatal = &e
	}
}

// notLeader is the FATAL of a session under a fence whose server may no longer be the primary.
var notLeader = wire.Error{Code: "57P01", Message: "terminating connection: the server is not confirmed as the primary",
	Detail: "The witness says that it isn't, or has not confirmed it within the bound, so another server may have been promoted.",
	Hint:   "Connect again. If a commit was under way, look on the present primary whether it was kept."}

// RequireLeader has the session end as soon as it is under a fence while confirmed returns false,
// unless the server is in recovery. It passes on no answer of the server's then, so a commit that
// the client sees acknowledged was so while confirmed returned true. confirmed must be quick; it gets
// the server's own address, zero if that isn't known or a pooler may change the server.
func (s *Session) RequireLeader(confirmed func(at time.Time, server netip.Addr) bool) {
	if s.cfg.Mode == Enforce {
		s.confirmed = confirmed
	}
}

// EndUnconfirmed ends the session if its server must be confirmed and isn't, and reports whether
// it has ended it just now.
func (s *Session) EndUnconfirmed() bool {
	s.at = s.cfg.Clock()
	return s.fatal == nil && s.unconfirmed()
}

// unconfirmed ends the session if its server must be confirmed and isn't at the time of the
// driver's call, and reports that.
func (s *Session) unconfirmed() bool {
	if s.confirmed == nil || !s.fenced || s.standby || s.confirmed(s.at, s.address) {
		return false
	}
	s.End(notLeader)
	return true
}

// Fatal returns the FATAL with which the session ends: then the driver sends it
// (AppendFatal) and closes both connections. It is nil before End.
func (s *Session) Fatal() *wire.Error { return s.fatal }

// AppendFatal appends the FATAL, if there is one. It appends none within a message of the
// server: the client would take it for the rest of that.
func (s *Session) AppendFatal(dst []byte) []byte {
	if s.fatal == nil || s.serverLeft > 0 && !s.dropServer {
		return dst
	}
	return s.fatal.Append(dst)
}

// Standing is the state of a session, for timeouts.
type Standing struct {
	State State
	// Activity changes whenever the client sends a request or a transaction ends.
	Activity uint32
	// Transactions counts the transactions that have ended.
	Transactions uint32
}

// State is the state of a session, as in pg_stat_activity.
type State uint8

// The states. StateOther has no transactions: the login, or a replication stream.
const (
	StateOther             State = iota
	StateIdle                    // idle, outside of a transaction
	StateIdleInTransaction       // the server waits for the client, in a transaction
	StateRunning                 // the server is at work
)

// Standing returns the session's state.
func (s *Session) Standing() Standing {
	at := Standing{StateRunning, s.activity, s.transactions}
	switch {
	case s.phase != serving || s.streaming:
		at.State = StateOther
	case s.Idle():
		at.State = StateIdle
	case s.q.Len() == 0:
		at.State = StateIdleInTransaction
	}
	return at
}

// Awaited is the addressee of the server's next answer.
type Awaited uint8

// The next answer is for a message of the client, for the exchange that takes a hold,
// which may wait for a takeover, or for another exchange.
const (
	AwaitsNothing Awaited = iota
	AwaitsClientAnswer
	AwaitsHold
	AwaitsExchange
)

// ReadyCount returns how many ReadyForQuery have come, from 1 on.
func (s *Session) ReadyCount() uint32 { return s.readyCount }

// Awaited returns the addressee of the server's next answer.
func (s *Session) Awaited() Awaited {
	switch {
	case s.q.Len() == 0:
		return AwaitsNothing
	case s.exchange.by == client:
		return AwaitsClientAnswer
	case s.exchange.by == asksHold:
		return AwaitsHold
	}
	return AwaitsExchange
}
