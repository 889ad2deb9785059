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
	defer s.occupy(x, -1)
	if !s.occupy(x, 1) {
		return false
	}
	p := place{session: x, path: path}
	if p.node, err = x.enqueue(path); err != nil {
		return false
	}
	defer func() { s.leave(x, p.node) }()
	for ctx.Err() == nil && !x.isOver() {
		if err = s.await(ctx, &p, func(free bool) {
			switch {
			case !heard:
				n.Hears(ctx, path)
				heard = true
			case free:
				n.Wake(path)
			}
		}); err != nil && !isConnection(err) {
			return heard
		}
	}
	return heard
}

// await watches the node before a place, or the lease, until it changes. Before that it
// tells whether the lease is free and the place is the first. If the connection is lost,
// the place is kept.
func (s *Store) await(ctx context.Context, p *place, tell func(free bool)) error {
	w, err := s.watcher(ctx)
	if err != nil {
		return err
	}
	defer s.occupy(w, -1)
	s.occupy(w, 1)
	owner, changes, err := p.watch(w)
	if err != nil {
		return err
	}
	if owner != 0 && p.after != "" && s.sessionOf(owner) != nil {
		return s.moveToEnd(p)
	}
	tell(p.before == "" && owner == 0)
	select {
	case change := <-changes:
		return change.Err
	case <-p.over:
	case <-ctx.Done():
	}
	return nil
}

// place is a place in the queue for a resource.
type place struct {
	*session
	path, node    string
	before, after string // the nodes next to it, "" for none
}

// watch watches the node before the place or, for the first, the lease. For the first it
// returns the session that has the lease, 0 if the lease is free. It asks another server
// than the one that made the place, which has to catch up.
func (p *place) watch(w *session) (owner int64, changes <-chan zk.Event, err error) {
	if err := w.catchUp(p.path); err != nil {
		return 0, nil, err
	}
	for {
		if err := p.look(w); err != nil {
			return 0, nil, err
		}
		if p.before == "" {
			held, stat, changes, err := w.conn.ExistsW(leaseOf(p.path))
			if held {
				owner = stat.EphemeralOwner
			}
			return owner, changes, err
		}
		_, _, changes, err = w.conn.GetW(p.before)
		if !errors.Is(err, zk.ErrNoNode) { // otherwise the node before it was just deleted
			return 0, changes, err
		}
	}
}

// moveToEnd moves a place to the end of the queue.
func (s *Store) moveToEnd(p *place) error {
	node, err := p.enqueue(p.path)
	if err == nil {
		s.leave(p.session, p.node)
		p.node = node
	}
	return err
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

// leave deletes a place, which would delay those behind it until the session ends. It
// returns at once, and goes on until it succeeds or the session is over.
func (s *Store) leave(x *session, node string) {
	if !s.begin() {
		return
	}
	go func() {
		defer s.running.Done()
		for isConnection(x.conn.Delete(node, -1)) {
			select {
			case <-time.After(retryPause):
			case <-x.over:
				return
			}
		}
	}()
}

var errNoPlace = errors.New("the place in the queue no longer exists")

// look finds the nodes before and after a place in the queue.
func (p *place) look(w *session) error {
	children, _, err := w.conn.Children(p.path)
	if err != nil {
		return err
	}
	line := slices.DeleteFunc(children, func(name string) bool { return !strings.Contains(name, "-waiter-") })
	slices.SortFunc(line, func(a, b string) int { return strings.Compare(number(a), number(b)) })
	i := slices.Index(line, strings.TrimPrefix(p.node, p.path+"/"))
	if i < 0 {
		return errNoPlace
	}
	p.before, p.after = "", ""
	if i > 0 {
		p.before = p.path + "/" + line[i-1]
	}
	if i < len(line)-1 {
		p.after = p.path + "/" + line[i+1]
	}
	return nil
}

// number returns the ten digits that ZooKeeper appends to the name of a sequential node.
func number(name string) string { return name[max(0, len(name)-10):] }
