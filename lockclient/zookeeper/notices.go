package zookeeper

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// Notify implements lockclient.Notifier. It returns before the store watches, and sends
// once when it does, since a release may have come before. An expired lease gives a
// notice, too. While no server is reachable, there are no notices.
//
// The stores that wait for a resource form a queue of ephemeral sequential nodes. Each
// watches the node before its own, and only the first watches the lease, so a release
// wakes one store. A store that has got the lease and has more waiters goes to the end of
// the queue.
func (s *Store) Notify(_ context.Context, resource fence.Resource, released chan<- struct{}) (func(), error) {
	return s.notices.Add(s.Path(resource), released), nil
}

// follow queues for a resource until ctx or its place ends, and reports whether it has
// heard of it. It ignores errors: waiters poll.
func (s *Store) follow(ctx context.Context, n *lockclient.Notices, path string) (heard bool) {
	x, err := s.anySession(ctx)
	if err != nil {
		return false
	}
	defer s.addPlaces(x, -1)
	if !s.addPlaces(x, 1) {
		return false
	}
	p := place{session: x, path: path}
	if p.node, err = x.enqueue(path); err != nil {
		return false
	}
	defer func() { _ = x.dequeue(p.node) }()
	for ctx.Err() == nil {
		owner, changes, err := p.watch()
		if err == nil && owner != 0 && s.sessionOf(owner) != nil {
			var moved bool
			if moved, err = p.moveToEnd(); moved && err == nil {
				continue
			}
		}
		if err != nil {
			return heard
		}
		switch {
		case !heard:
			n.Hears(ctx, path)
			heard = true
		case p.first && owner == 0:
			n.Wake(path)
		}
		select {
		case change := <-changes:
			if change.Err != nil {
				return heard
			}
		case <-ctx.Done():
		}
	}
	return heard
}

// addPlaces adds to the number of places that a session has in queues. It reports whether
// the session is still in use.
func (s *Store) addPlaces(x *session, more int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.places += more
	x.used = time.Now()
	return s.sessions[x.timeout] == x
}

// place is a place in the queue for a resource.
type place struct {
	*session
	path, node string
	first      bool // no place is before it, and none will be
}

// watch watches the node before the place or, for the first, the lease. For the first it
// returns the session that has the lease, 0 if the lease is free.
func (p *place) watch() (owner int64, changes <-chan zk.Event, err error) {
	for {
		var before string
		if !p.first {
			if before, _, err = p.neighbours(); err != nil {
				return 0, nil, err
			}
			p.first = before == ""
		}
		if p.first {
			held, stat, changes, err := p.conn.ExistsW(leaseOf(p.path))
			if held {
				owner = stat.EphemeralOwner
			}
			return owner, changes, err
		}
		_, _, changes, err = p.conn.GetW(before)
		if !errors.Is(err, zk.ErrNoNode) { // otherwise the node before it was just deleted
			return 0, changes, err
		}
	}
}

// moveToEnd moves the first place to the end of the queue, if there are others.
func (p *place) moveToEnd() (moved bool, err error) {
	_, after, err := p.neighbours()
	if err != nil || after == "" {
		return false, err
	}
	last := p.node
	if p.node, err = p.enqueue(p.path); err != nil {
		p.node = last
		return false, err
	}
	p.first = false
	return true, p.dequeue(last)
}

// enqueue creates a node at the end of the queue.
func (x *session) enqueue(path string) (place string, err error) {
	place, err = x.conn.CreateProtectedEphemeralSequential(path+"/waiter-", nil, x.acl())
	if errors.Is(err, zk.ErrNoNode) {
		if err := x.makeNode(path, "0"); err != nil {
			return "", err
		}
		place, err = x.conn.CreateProtectedEphemeralSequential(path+"/waiter-", nil, x.acl())
	}
	return place, err
}

// dequeue deletes a place, which would delay those behind it until the session ends.
// After a failure keepAlive tries again.
func (x *session) dequeue(node string) error {
	_, err := repeat(context.Background(), func() (struct{}, error) { return struct{}{}, x.deletePlace(node) })
	if err != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.left = append(x.left, node)
	}
	return err
}

// retryDequeue deletes the places whose deletion failed before.
func (x *session) retryDequeue() {
	x.mu.Lock()
	left := x.left
	x.left = nil
	x.mu.Unlock()
	failed := slices.DeleteFunc(left, func(node string) bool { return x.deletePlace(node) == nil })
	x.mu.Lock()
	defer x.mu.Unlock()
	x.left = append(x.left, failed...)
}

func (x *session) deletePlace(node string) error {
	err := x.conn.Delete(node, -1)
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return err
}

var errNoPlace = errors.New("the place in the queue no longer exists")

// neighbours returns the nodes before and after a place in the queue, "" for none.
func (p *place) neighbours() (before, after string, err error) {
	children, _, err := p.conn.Children(p.path)
	if err != nil {
		return "", "", err
	}
	line := slices.DeleteFunc(children, func(name string) bool { return !strings.Contains(name, "-waiter-") })
	slices.SortFunc(line, func(a, b string) int { return strings.Compare(number(a), number(b)) })
	i := slices.Index(line, strings.TrimPrefix(p.node, p.path+"/"))
	if i < 0 {
		return "", "", errNoPlace
	}
	if i > 0 {
		before = p.path + "/" + line[i-1]
	}
	if i < len(line)-1 {
		after = p.path + "/" + line[i+1]
	}
	return before, after, nil
}

// number returns the ten digits that ZooKeeper appends to the name of a sequential node.
func number(name string) string { return name[max(0, len(name)-10):] }
