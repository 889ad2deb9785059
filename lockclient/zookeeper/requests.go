package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// tryAcquire wins the lease, or returns its holder.
func (s *Store) tryAcquire(ctx context.Context, g *grant, ttl time.Duration) (lockclient.Attempt, error) {
	path := g.key.path
	x, err := s.session(ctx, ttl)
	if err != nil {
		return lockclient.Attempt{}, err
	}
	count, version, err := x.counter(path)
	switch {
	case err != nil:
		return lockclient.Attempt{}, err
	case count == math.MaxInt64:
		return lockclient.Attempt{}, fmt.Errorf("%w: %s is %d", lockclient.ErrCounter, path, count)
	}
	if err := x.checkTimeout(ttl); err != nil {
		return lockclient.Attempt{}, err
	}
	repeated := g.session != nil // by the holder
	if repeated {
		if mine, err := s.readLease(x, g); err != nil || !mine || g.version != version {
			return lockclient.Attempt{}, errOrAgain(err)
		}
	}
	before := g.session
	s.setSession(g, x) // before the request, whose answer may be lost
	_, err = x.conn.Multi(append(x.create(g, ttl, repeated),
		&zk.SetDataRequest{Path: path, Data: strconv.AppendInt(nil, count+1, 10), Version: version})...)
	switch {
	case err == nil:
		g.version, g.until = version+1, time.Now().Add(ttl)
		return lockclient.Attempt{Token: fence.Token(count + 1)}, nil
	case isConnection(err):
		g.version, g.until = unknown, time.Now().Add(ttl)
		return lockclient.Attempt{}, err
	}
	s.setSession(g, before)
	switch {
	case errors.Is(err, zk.ErrNodeExists):
		return s.heldBy(x, g)
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion):
		return lockclient.Attempt{}, errOrAgain(x.catchUp(path))
	}
	return lockclient.Attempt{}, err
}

// errOrAgain returns err, or errAgain if it is nil.
func errOrAgain(err error) error {
	if err != nil {
		return err
	}
	return errAgain
}

// heldBy returns the holder of a lease that could not be won. What it reads is not older
// than the refusal.
func (s *Store) heldBy(x *session, g *grant) (lockclient.Attempt, error) {
	data, _, err := x.conn.Get(leaseOf(g.key.path))
	switch holder, _ := parseLease(data); {
	case errors.Is(err, zk.ErrNoNode):
		return lockclient.Attempt{}, errAgain
	case err != nil:
		return lockclient.Attempt{}, err
	case holder != g.key.holder:
		return lockclient.Attempt{Holder: holder}, nil
	}
	mine, err := s.readLease(x, g) // the answer to an earlier request was lost
	if mine && err == nil && g.session == nil {
		err = errElsewhere
	}
	return lockclient.Attempt{}, errOrAgain(err)
}

// errElsewhere says that a session of another store has the lease.
var errElsewhere = errors.New("the lease belongs to a session of another process, and only that process can renew it")

// find returns the session by which to ask for a lease, nil if it is not the holder's.
func (s *Store) find(ctx context.Context, g *grant) (*session, error) {
	if g.session != nil && g.version != unknown {
		return g.session, nil
	}
	x, err := s.anySession(ctx)
	if err != nil {
		return nil, err
	}
	if mine, err := s.readLease(x, g); err != nil || !mine {
		return nil, err
	}
	return x, nil
}

// change makes changes on condition that the holder still has the lease, and reports whether
// it has: if the counter still has the version of the grant, no later grant was made.
func (s *Store) change(x *session, g *grant, changes ...any) (held bool, err error) {
	_, err = x.conn.Multi(append(changes, &zk.CheckVersionRequest{Path: g.key.path, Version: g.version})...)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, zk.ErrNoNode):
		s.setSession(g, nil)
		return false, nil
	case errors.Is(err, zk.ErrBadVersion): // the counter was raised, or another holder has the lease
		err = errAgain
	}
	g.version = unknown
	return false, err
}

// tryRenew restarts the time of a lease by any request on its session, and verifies at
// the leader that the holder still has the lease.
func (s *Store) tryRenew(ctx context.Context, g *grant, ttl time.Duration) (bool, error) {
	if g.session != nil && !time.Now().Before(g.until) {
		return false, nil // expire is about to end it
	}
	if x, err := s.find(ctx, g); err != nil || x == nil {
		return false, err
	}
	if g.session == nil {
		return false, errElsewhere
	}
	x, changes, err := s.renewal(ctx, g, ttl)
	if err != nil {
		return false, err
	}
	held, err := s.change(x, g, changes...)
	if held {
		s.setSession(g, x)
		g.until = time.Now().Add(ttl)
	}
	return held, err
}

// renewal returns the requests by which a renewal keeps or moves the lease node, and
// their session: the node moves to another session if its own is too short for the ttl.
func (s *Store) renewal(ctx context.Context, g *grant, ttl time.Duration) (*session, []any, error) {
	if s.sessionTimeout(ttl) <= g.session.timeout {
		return g.session, []any{&zk.CheckVersionRequest{Path: leaseOf(g.key.path), Version: -1}}, g.session.checkTimeout(ttl)
	}
	x, err := s.session(ctx, ttl)
	if err != nil {
		return nil, nil, err
	}
	if _, _, err := x.conn.Exists("/"); err != nil { // it may not have been connected yet
		return nil, nil, err
	}
	return x, x.create(g, ttl, true), x.checkTimeout(ttl)
}

// end deletes the lease node if it is the holder's. It does not repeat a deletion that
// failed: after a lost answer a missing node proves nothing.
func (s *Store) end(ctx context.Context, g *grant) (bool, error) {
	for {
		x, err := repeat(ctx, func() (*session, error) { return s.find(ctx, g) })
		if err != nil || x == nil {
			return false, err
		}
		held, err := s.change(x, g, &zk.DeleteRequest{Path: leaseOf(g.key.path), Version: -1})
		if held {
			s.setSession(g, nil)
		}
		if !errors.Is(err, errAgain) {
			return held, err
		}
	}
}
