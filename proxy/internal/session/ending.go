package session

import (
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Idle reports whether the session is between transactions, with nothing
// outstanding and no message half sent.
func (s *Session) Idle() bool {
	return s.phase == serving && s.tx == wire.Idle && s.q.Len() == 0 && !s.batch.Open && len(s.toward) == 0 && s.between()
}

// MayEnd reports whether the session can be ended without cutting into a
// transaction: it is idle, or it streams replication, which has no transactions
// and no end of its own.
func (s *Session) MayEnd() bool { return s.Idle() || s.streaming && s.skipBack == 0 }

// Running reports whether the server may be at work for the client. It then
// doesn't notice that its connection is closed before it is done, but for a
// cancel request.
func (s *Session) Running() bool { return s.phase == serving && s.q.Len() > 0 }

// InTransaction reports whether a transaction block is open, as of the last
// ReadyForQuery.
func (s *Session) InTransaction() bool { return s.tx != wire.Idle }

// End asks the session to end with this error. The first one counts, and none
// does after a FATAL of the server's own.
func (s *Session) End(e wire.Error) {
	if s.farewell == nil && !s.failed {
		e.Severity = "FATAL"
		s.farewell = &e
	}
}

// Farewell returns the FATAL with which the session ends: then the driver sends
// the client its last words and closes both connections. It is nil while the
// session goes on.
func (s *Session) Farewell() *wire.Error { return s.farewell }

// LastWords appends the FATAL that is due, if any. A client that has got a part
// of a message only is told nothing: it would take the FATAL for the rest of a
// row.
func (s *Session) LastWords(dst []byte) []byte {
	if s.farewell == nil || s.skipBack > 0 && !s.dropBack {
		return dst
	}
	return s.farewell.Append(dst)
}

// Standing is where a session stands, for who watches how long it stays there.
type Standing struct {
	Where Where
	// Activity changes whenever the client sends something or a transaction ends.
	Activity uint32
	// Transactions counts those that have ended.
	Transactions uint32
}

// Where a session can stand.
type Where uint8

// Elsewhere is what has no transactions: the login, and a replication stream.
const (
	Elsewhere Where = iota
	Between         // idle, outside of a transaction
	Waiting         // the server waits for the client, in a transaction
	Running         // the server is at work
)

// Standing returns where the session stands.
func (s *Session) Standing() Standing {
	at := Standing{Running, s.activity, s.transactions}
	switch {
	case s.phase != serving || s.streaming:
		at.Where = Elsewhere
	case s.Idle():
		at.Where = Between
	case s.q.Len() == 0:
		at.Where = Waiting
	}
	return at
}

// Turn says whose the answer is that comes next.
type Turn uint8

// The turns. HoldsTurn is that of a hold which is asked for, and may wait for a
// takeover; ProxysTurn that of another question of the proxy's own.
const (
	NobodysTurn Turn = iota
	ClientsTurn
	HoldsTurn
	ProxysTurn
)

// Answers counts the ReadyForQuery that have come, from 1 on.
func (s *Session) Answers() uint32 { return s.answers }

// Turn returns whose the answer is that comes next.
func (s *Session) Turn() Turn {
	switch {
	case s.q.Len() == 0:
		return NobodysTurn
	case s.own.by == client || s.own.by == beforeCall:
		return ClientsTurn
	case s.own.by == takes:
		return HoldsTurn
	}
	return ProxysTurn
}
