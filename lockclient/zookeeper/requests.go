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

// repeatTimeout bounds how long requests are repeated while connections break or no server
// accepts the driver: an ensemble may need that long to elect a leader. retryPause is the
// pause between two tries.
const (
	repeatTimeout = 3 * time.Second
	retryPause    = 50 * time.Millisecond
)

// errAgain says that a node has changed since it was read.
var errAgain = errors.New("changed since it was read")

// repeat calls try until its result is final. It repeats errAgain without a limit: each
// means that another client has made progress.
func repeat[T any](ctx context.Context, try func() (T, error)) (T, error) {
	var none T
	failing := time.Now()
	for {
		value, err := try()
		switch {
		case errors.Is(err, errAgain):
			failing = time.Now()
		case isConnection(err) && time.Since(failing) < repeatTimeout:
			select {
			case <-time.After(retryPause):
			case <-ctx.Done():
			}
		default:
			return value, err
		}
		if err := ctx.Err(); err != nil {
			return none, err
		}
	}
}

func (s *Store) acquire(ctx context.Context, path, holder string, ttl time.Duration) (lockclient.Attempt, error) {
	g, err := s.lockGrant(ctx, grantKey{path, holder})
	if err != nil {
		return lockclient.Attempt{}, err
	}
	defer s.unlockGrant(g)
	return repeat(ctx, func() (lockclient.Attempt, error) { return s.tryAcquire(ctx, g, ttl) })
}

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
	steps := x.create(g, ttl)
	if g.session != nil { // a repeated request of the holder
		mine, err := s.readLease(x, g)
		if err != nil || !mine || g.version != version {
			return lockclient.Attempt{}, errOrAgain(err)
		}
		steps = x.replace(g, ttl)
	}
	before := g.session
	s.setSession(g, x) // before the request, whose answer may be lost
	_, err = x.conn.Multi(append(steps,
		&zk.SetDataRequest{Path: path, Data: strconv.AppendInt(nil, count+1, 10), Version: version})...)
	switch {
	case err == nil:
		g.version, g.until = version+1, time.Now().Add(ttl)
		return lockclient.Attempt{Token: fence.Token(count + 1)}, nil
	case isConnection(err):
		g.version, g.until = unknown, time.Now().Add(ttl)
		return lockclient.Attempt{}, x.explain(err)
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
		return lockclient.Attempt{}, x.explain(err)
	case holder != g.key.holder:
		return lockclient.Attempt{Holder: holder}, nil
	}
	mine, err := s.readLease(x, g) // the answer to an earlier request was lost
	if mine && err == nil && g.session == nil {
		err = errElsewhere
	}
	return lockclient.Attempt{}, errOrAgain(err)
}

func (s *Store) renew(ctx context.Context, path, holder string, ttl time.Duration) (bool, error) {
	g, err := s.lockGrant(ctx, grantKey{path, holder})
	if err != nil {
		return false, err
	}
	defer s.unlockGrant(g)
	return repeat(ctx, func() (bool, error) { return s.tryRenew(ctx, g, ttl) })
}

// errElsewhere says that a session of another store has the lease.
var errElsewhere = errors.New("the lease belongs to a session of another process, and only that process can renew it")

// tryRenew restarts the time of a lease by any request on its session, and verifies at
// the leader that the holder still has the lease: if the counter still has the version of
// the grant, no later grant was made.
func (s *Store) tryRenew(ctx context.Context, g *grant, ttl time.Duration) (bool, error) {
	if g.session != nil && !time.Now().Before(g.until) {
		return false, nil // expire is about to end it
	}
	if g.session == nil || g.version == unknown {
		x, err := s.anySession(ctx)
		if err != nil {
			return false, err
		}
		if mine, err := s.readLease(x, g); err != nil || !mine {
			return false, err
		}
		if g.session == nil {
			return false, errElsewhere
		}
	}
	x, steps, err := s.renewal(ctx, g, ttl)
	if err != nil {
		return false, err
	}
	_, err = x.conn.Multi(append(steps, &zk.CheckVersionRequest{Path: g.key.path, Version: g.version})...)
	switch {
	case err == nil:
		s.setSession(g, x)
		g.until = time.Now().Add(ttl)
		return true, nil
	case errors.Is(err, zk.ErrNoNode):
		s.setSession(g, nil)
		return false, nil
	case errors.Is(err, zk.ErrBadVersion): // the counter was raised, or another holder has the lease
		err = errAgain
	}
	g.version = unknown
	return false, x.explain(err)
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
		return nil, nil, x.explain(err)
	}
	return x, x.replace(g, ttl), x.checkTimeout(ttl)
}

func (s *Store) release(ctx context.Context, path, holder string) (bool, error) {
	g, err := s.lockGrant(ctx, grantKey{path, holder})
	if err != nil {
		return false, err
	}
	defer s.unlockGrant(g)
	held, err := s.end(ctx, g)
	if err != nil && g.session != nil {
		g.until = time.Now()
	}
	return held, err
}

// end deletes the lease node if it is the holder's. It does not repeat a deletion that
// failed: after a lost answer a missing node proves nothing.
func (s *Store) end(ctx context.Context, g *grant) (bool, error) {
	x, err := repeat(ctx, func() (*session, error) {
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
	})
	if err != nil || x == nil {
		return false, err
	}
	_, err = x.conn.Multi(&zk.DeleteRequest{Path: leaseOf(g.key.path), Version: -1},
		&zk.CheckVersionRequest{Path: g.key.path, Version: g.version})
	switch {
	case err == nil:
		s.setSession(g, nil)
		return true, nil
	case errors.Is(err, zk.ErrNoNode):
		s.setSession(g, nil)
		return false, nil
	case errors.Is(err, zk.ErrBadVersion):
		g.version = unknown
		return s.end(ctx, g)
	}
	g.version = unknown
	return false, x.explain(err)
}

func (s *Store) raise(ctx context.Context, path string, token fence.Token) error {
	_, err := repeat(ctx, func() (struct{}, error) {
		x, err := s.anySession(ctx)
		if err != nil {
			return struct{}{}, err
		}
		count, version, err := x.counter(path)
		if err != nil || count >= int64(token) {
			return struct{}{}, err
		}
		_, err = x.conn.Set(path, strconv.AppendInt(nil, int64(token), 10), version)
		if errors.Is(err, zk.ErrBadVersion) {
			err = errOrAgain(x.catchUp(path))
		}
		return struct{}{}, x.explain(err)
	})
	return err
}
