package session

import (
	"slices"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Leases may follow the locks that the client takes by itself: advisory locks, and rows whose table
// announces their claims. Behind a message that may have taken or released one the driver looks at them: at
// advisory locks outside of a transaction, where one of the session is told from one of the transaction, and
// at rows behind each statement, since only committed claims are seen. The answer waits for that: a grant
// must be recorded before the client can act on it.

// looks says what the driver has to look at.
type looks struct {
	named  bool     // a message that was sent since the last look may have taken or released an advisory lock
	claims []string // of rows, announced since the end of the last transaction
	due    *Look    // the next ReadyForQuery is held back for it
	seen   bool     // it has been looked at for the next ReadyForQuery
}

// Look is what a driver has to look at.
type Look struct {
	Advisory bool     // at the session's advisory locks
	Claims   []string // of rows that transactions have changed, of which one may be open yet
}

// withholds reports whether a ReadyForQuery is held back until LocksSeen. A transaction that has taken a
// row may be over although another is open, by AND CHAIN; and more messages may be on their way.
func (s *Session) withholds(msg []byte) bool {
	idle := len(msg) == 6 && msg[5] == wire.Idle
	l := &s.locks
	switch advisory := l.named && idle && s.q.Ready() == 1 && !s.batch.Open; {
	case l.seen:
		if l.seen = false; idle {
			l.claims = nil
		}
	case l.due == nil && (advisory || len(l.claims) > 0):
		l.due, l.named = &Look{advisory, l.claims}, l.named && !advisory
	}
	return l.due != nil
}

// takesClaim reports whether a notice is that of the trigger of a class that is followed, which isn't
// the client's: the row, and behind a space the transaction if that has taken it.
func (s *Session) takesClaim(notice []byte) bool {
	if len(s.cfg.FollowsRows) == 0 || wire.ErrorField(notice, 's') != "wirefence" || wire.ErrorField(notice, 't') != "row_claims" {
		return false
	}
	claim := wire.ErrorField(notice, 'D')
	row, _, _ := strings.Cut(claim, " ")
	others := slices.DeleteFunc(slices.Clone(s.locks.claims), func(c string) bool { return c == row || strings.HasPrefix(c, row+" ") })
	if slices.Contains(s.cfg.FollowsRows, row) && (claim != row || len(others) == len(s.locks.claims)) { // a take is kept
		s.locks.claims = append(others, claim)
	}
	return true
}

// OwnsServer reports whether the client's server process is its own: behind a transaction pooler it may be
// another's in the next transaction. Otherwise its advisory locks aren't followed.
func (s *Session) OwnsServer() bool { return s.tracked && !s.pooled }

// LocksDue is what the driver has to look at, nil for nothing. Then it calls LocksSeen and FromServer.
func (s *Session) LocksDue() *Look { return s.locks.due }

// LocksSeen says that the driver has looked. With an error the session ends, which frees its locks.
func (s *Session) LocksSeen(err *wire.Error) {
	s.locks.due, s.locks.seen = nil, true
	if err != nil {
		s.End(*err)
	}
}
