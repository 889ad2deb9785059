package session

import "github.com/wirefence/wirefence/proxy/internal/wire"

// Leases may follow the advisory locks that the client takes by itself. Behind a message that may
// have taken or released one the driver looks at them, outside of a transaction, where a lock of the
// session is told from one of the transaction. The answer waits for that: a grant must be recorded
// before the client can act on it.

// looks says whether the driver has to look at the client's advisory locks.
type looks struct {
	named bool // a message that was sent since the last look may have taken or released one
	due   bool // the next ReadyForQuery is held back for a look
}

// withholds reports whether a ReadyForQuery is held back until LocksSeen.
func (s *Session) withholds(msg []byte) bool {
	if s.locks.named && len(msg) == 6 && msg[5] == wire.Idle && s.q.Ready() == 1 && !s.batch.Open {
		s.locks = looks{due: true}
	}
	return s.locks.due
}

// FollowsLocks reports whether LocksDue may ever be true: behind a transaction pooler the client's
// server process may be another's in the next transaction.
func (s *Session) FollowsLocks() bool { return s.cfg.FollowsLocks && s.tracked && !s.pooled }

// LocksDue reports whether the driver has to look at the client's advisory locks, and to call
// LocksSeen and then FromServer.
func (s *Session) LocksDue() bool { return s.locks.due }

// LocksSeen says that the driver has looked. With an error the session ends, which frees its locks.
func (s *Session) LocksSeen(err *wire.Error) {
	s.locks.due = false
	if err != nil {
		s.End(*err)
	}
}
