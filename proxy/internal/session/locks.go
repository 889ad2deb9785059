package session

import "github.com/wirefence/wirefence/proxy/internal/wire"

// Leases may follow the advisory locks that the client takes by itself. Behind a message that may
// have taken or released one the driver looks at them, outside of a transaction, where a lock of the
// session is told from one of the transaction. The answer waits for that: a grant must be recorded
// before the client can act on it.

// lockState says whether the driver has to look at the client's advisory locks.
type lockState uint8

const (
	locksSeen  lockState = iota
	locksNamed           // a message that was sent may have taken or released one
	locksDue             // the last ReadyForQuery is held back
)

// withholds reports whether a ReadyForQuery is held back until LocksSeen.
func (s *Session) withholds(msg []byte) bool {
	if s.locks == locksNamed && len(msg) == 6 && msg[5] == wire.Idle && s.q.Ready() == 1 && !s.batch.Open {
		s.locks = locksDue
	}
	return s.locks == locksDue
}

// LocksDue reports whether the driver has to look at the client's advisory locks, and to call
// LocksSeen and then FromServer.
func (s *Session) LocksDue() bool { return s.locks == locksDue }

// LocksSeen says that the driver has looked. With an error the session ends, which frees its locks.
func (s *Session) LocksSeen(err *wire.Error) {
	s.locks = locksSeen
	if err != nil {
		s.End(*err)
	}
}
