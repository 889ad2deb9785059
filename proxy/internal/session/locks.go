package session

import (
	"slices"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Leases may follow the locks that the client takes by itself: advisory locks, and rows whose table
// announces their claims. Behind a message that may have taken or released one the driver looks at them,
// outside of a transaction: a lock of the session is told there from one of the transaction, and a claim
// is committed. The answer waits for that: a grant must be recorded before the client can act on it.

// looks says whether the driver has to look at the client's locks.
type looks struct {
	named  bool     // a message that was sent since the last look may have taken or released an advisory lock
	claims []string // of rows, announced since then
	due    bool     // the next ReadyForQuery is held back for a look
}

// withholds reports whether a ReadyForQuery is held back until LocksSeen.
func (s *Session) withholds(msg []byte) bool {
	if (s.locks.named || len(s.locks.claims) > 0) && len(msg) == 6 && msg[5] == wire.Idle && s.q.Ready() == 1 && !s.batch.Open {
		s.locks.named, s.locks.due = false, true
	}
	return s.locks.due
}

// takesClaim reports whether a notice is that of the trigger of a class that is followed, which isn't
// the client's: the row, and behind a space the transaction if that has taken it.
func (s *Session) takesClaim(notice []byte) bool {
	if len(s.cfg.FollowsRows) == 0 || wire.ErrorField(notice, 's') != "wirefence" || wire.ErrorField(notice, 't') != "row_claims" {
		return false
	}
	claim := wire.ErrorField(notice, 'D')
	row, _, _ := strings.Cut(claim, " ")
	if slices.Contains(s.cfg.FollowsRows, row) {
		s.locks.claims = append(slices.DeleteFunc(s.locks.claims, func(c string) bool { return c == row || strings.HasPrefix(c, row+" ") }), claim)
	}
	return true
}

// OwnsServer reports whether the client's server process is its own: behind a transaction pooler it may be
// another's in the next transaction. Otherwise its advisory locks aren't followed, and guards don't see the
// fences of its locks.
func (s *Session) OwnsServer() bool { return s.tracked && !s.pooled }

// LocksDue reports whether the driver has to look at the client's locks, and to call LocksSeen and then
// FromServer. claims are those of rows.
func (s *Session) LocksDue() (claims []string, due bool) { return s.locks.claims, s.locks.due }

// LocksSeen says that the driver has looked. With an error the session ends, which frees its locks.
func (s *Session) LocksSeen(err *wire.Error) {
	s.locks.claims, s.locks.due = nil, false
	if err != nil {
		s.End(*err)
	}
}
