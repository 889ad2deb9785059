// Package advisory makes a lease of each advisory lock that an application takes in its own sessions:
// behind the statement that may have taken one it looks at pg_locks, counts a token, and seals it on
// the issuer's connection while the statement's answer waits.
//
// Of this module it imports fence, internal/adopt and internal/adopt/seal.
package advisory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/adopt/seal"
)

// Follower follows the advisory locks of an application's sessions. It is safe for concurrent use.
type Follower struct{ seal.Options }

// New makes one for locks of the kind adopt.Advisory.
func New(o seal.Options) *Follower { return &Follower{o.WithDefaults()} }

// Session follows those of a session, by the process ID of its server process. It returns nil for
// another database than the pool's: an advisory lock counts in one.
func (f *Follower) Session(pid uint32, database string) *Session {
	if database != f.Pool.Config().ConnConfig.Database {
		return nil
	}
	s := &Session{Follower: f, pid: pid, held: map[fence.Resource]fence.Token{}}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// Session follows the locks of one session. Look and End may be called at the same time.
type Session struct {
	*Follower
	pid    uint32
	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc

	mu   sync.Mutex // held during a Look
	held map[fence.Resource]fence.Token
}

var errSessionOver = errors.New("its session is over")

// End ends the leases of the session's locks.
func (s *Session) End() {
	s.cancel(errSessionOver)
	s.mu.Lock()
	defer s.mu.Unlock()
	for resource := range s.held {
		s.end(resource, errSessionOver.Error())
	}
}

func (s *Session) end(resource fence.Resource, reason string) {
	s.Book.End(resource, s.held[resource], reason)
	delete(s.held, resource)
}

// Look begins the leases of locks that the session has and hadn't when it looked last, and ends those
// of locks that it doesn't have any more.
func (s *Session) Look() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, s.Timeout)
	defer cancel()
	has, err := s.look(ctx)
	if err != nil {
		return err
	}
	for i, lock := range s.Locks {
		_, had := s.held[lock.Resource]
		switch {
		case had && !has[i]:
			s.end(lock.Resource, "it was released")
		case has[i] && !had:
			high, low, keys := keysOf(lock)
			token, err := s.Adopt(ctx, lock, seal.Still{SQL: stillSQL, Args: []any{int64(s.pid), high, low, keys}}, time.Time{})
			if err != nil {
				return err
			}
			if token > 0 {
				s.held[lock.Resource] = token
			}
		}
	}
	return nil
}

// has is whether the server process w.pid has the lock of the row w, at session level as long as it
// has no transaction. A lock of one key has its halves in classid and objid, and objsubid 1; one of
// two keys has objsubid 2 (documentation, "pg_locks").
const has = `EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock'
 AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
 AND l.pid = w.pid AND l.classid::pg_catalog.int8 = w.high AND l.objid::pg_catalog.int8 = w.low AND l.objsubid = w.keys)`

// lookSQL asks that of several locks.
const lookSQL = `SELECT pg_catalog.array_agg(` + has + ` ORDER BY w.n) FROM (SELECT $1::pg_catalog.int8 AS pid, k.* FROM
 ROWS FROM (pg_catalog.unnest($2::pg_catalog.int8[]), pg_catalog.unnest($3::pg_catalog.int8[]), pg_catalog.unnest($4::pg_catalog.int8[])) WITH ORDINALITY k (high, low, keys, n)) w`

// stillSQL asks it behind a seal.
const stillSQL = `(SELECT ` + has + ` FROM (SELECT w.sealed, $5::pg_catalog.int8 AS pid, $6::pg_catalog.int8 AS high, $7::pg_catalog.int8 AS low, $8::pg_catalog.int8 AS keys OFFSET 0) w)`

// keysOf returns a lock as pg_locks has it.
func keysOf(lock adopt.Lock) (high, low, keys int64) {
	n := lock.Numbers
	if len(n) == 1 {
		return int64(uint32(n[0] >> 32)), int64(uint32(n[0])), 1
	}
	return int64(uint32(n[0])), int64(uint32(n[1])), 2
}

// look reports which of the locks the session has.
func (s *Session) look(ctx context.Context) (has []bool, err error) {
	var high, low, keys []int64
	for _, lock := range s.Locks {
		h, l, k := keysOf(lock)
		high, low, keys = append(high, h), append(low, l), append(keys, k)
	}
	if err := s.Pool.QueryRow(ctx, lookSQL, int64(s.pid), high, low, keys).Scan(&has); err != nil {
		return nil, fmt.Errorf("look at pg_locks: %w", err)
	}
	return has, nil
}
