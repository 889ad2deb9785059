package zookeeper

import (
	"context"
	"sync"
	"time"
)

// grant is the state of a lease that the store has won, or may have won. The store keeps
// it until the lease is known to have ended, so that no lease outlives its ttl because an
// answer was lost or nobody waited for it.
type grant struct {
	key   grantKey
	users int // the calls that have it or wait for it; guarded by the store's mu

	mu      sync.Mutex
	session *session    // the session of the lease node, nil while not held; written with the store's mu
	version int32       // of the resource's node since the token was counted
	until   time.Time   // when the store ends the lease
	timer   *time.Timer // fires at until
}

type grantKey struct{ path, holder string }

// lockGrant finds or creates a grant and locks it.
func (s *Store) lockGrant(ctx context.Context, key grantKey) (*grant, error) {
	s.mu.Lock()
	g := s.grants[key]
	if g == nil {
		g = &grant{key: key}
		s.grants[key] = g
	}
	g.users++
	s.mu.Unlock()
	g.mu.Lock()
	if err := ctx.Err(); err != nil { // nobody waits for the call any more
		s.unlockGrant(g)
		return nil, err
	}
	return g, nil
}

// unlockGrant unlocks a grant. A lease that is still held ends at its deadline.
func (s *Store) unlockGrant(g *grant) {
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.session != nil {
		g.timer = time.AfterFunc(time.Until(g.until), func() { s.expire(g.key) })
	}
	g.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	g.users--
	if g.users == 0 && g.session == nil {
		delete(s.grants, g.key)
	}
}

// setSession records the session in which the lease node may be from now on; nil for none.
func (s *Store) setSession(g *grant, x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.session = x
}

// expiryRetry is the pause between two tries to end a lease.
const expiryRetry = time.Second

// expire ends a lease that was not renewed.
func (s *Store) expire(key grantKey) {
	if !s.begin() {
		return
	}
	defer s.running.Done()
	ctx := context.Background()
	g, err := s.lockGrant(ctx, key)
	if err != nil {
		return
	}
	defer s.unlockGrant(g)
	if g.session == nil || time.Now().Before(g.until) {
		return
	}
	if _, err := s.end(ctx, g); err != nil {
		g.until = time.Now().Add(expiryRetry)
	}
}
