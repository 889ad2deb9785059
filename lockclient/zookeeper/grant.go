package zookeeper

import (
	"context"
	"time"
)

// grant is what the store knows of a lease that it won, or may have won. It is
// kept until the lease is known to have ended, so that none outlives its ttl
// because an answer was lost or nobody waited for it.
type grant struct {
	key   grantKey
	users int           // that have it or wait for it, by the store's mu
	taken chan struct{} // who puts an element has the grant and what follows

	session *session    // nil while not held, else where the lease node is; written with the store's mu
	version int32       // of the resource's node since the token was counted
	until   time.Time   // when the store ends the lease
	timer   *time.Timer // fires then
}

type grantKey struct{ path, holder string }

// take finds or makes a grant and waits until nobody else has it.
func (s *Store) take(ctx context.Context, key grantKey) (*grant, error) {
	s.mu.Lock()
	g := s.grants[key]
	if g == nil {
		g = &grant{key: key, taken: make(chan struct{}, 1)}
		s.grants[key] = g
	}
	g.users++
	s.mu.Unlock()
	select {
	case g.taken <- struct{}{}:
		return g, nil
	case <-ctx.Done():
		s.leave(g)
		return nil, ctx.Err()
	}
}

// put gives back what take gave. A grant that is held ends when its time is over.
func (s *Store) put(g *grant) {
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.session != nil {
		g.timer = time.AfterFunc(time.Until(g.until), func() { s.expire(g.key) })
	}
	<-g.taken
	s.leave(g)
}

func (s *Store) leave(g *grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.users--
	if g.users == 0 && g.session == nil {
		delete(s.grants, g.key)
	}
}

// hold notes that the lease node may be in a session from now on, or in none if
// that is nil.
func (s *Store) hold(g *grant, x *session) {
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
	g, err := s.take(ctx, key)
	if err != nil {
		return
	}
	defer s.put(g)
	if g.session == nil || time.Now().Before(g.until) {
		return
	}
	if _, err := s.end(ctx, g); err != nil {
		g.until = time.Now().Add(expiryRetry)
	}
}
