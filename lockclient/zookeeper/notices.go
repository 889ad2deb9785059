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

// Notify implements lockclient.Notifier. It returns before the store watches,
// and sends once when it does, since a release may have come before. An expired
// lease is told of like one that was released. While no server can be reached,
// there are no notices.
//
// The stores that wait for a resource stand in a line of ephemeral sequential
// nodes. Each watches the one before it, and only the first the lease: a release
// wakes one store. A store that has got the lease and has more waiters goes to
// the end of the line.
func (s *Store) Notify(_ context.Context, resource fence.Resource, released chan<- struct{}) (func(), error) {
	return s.notices.Add(s.Path(resource), released), nil
}

// follow stands in line for a resource until ctx or its place ends, and reports
// whether it came so far. Errors are none of the waiters': they poll.
func (s *Store) follow(ctx context.Context, n *lockclient.Notices, path string) (heard bool) {
	x, err := s.any(ctx)
	if err != nil {
		return false
	}
	defer s.standsIn(x, -1)
	if !s.standsIn(x, 1) {
		return false
	}
	p := place{session: x, path: path}
	if p.node, err = x.lineUp(path); err != nil {
		return false
	}
	defer func() { _ = x.leaveLine(p.node) }()
	for ctx.Err() == nil {
		owner, changes, err := p.watch()
		if err == nil && owner != 0 && s.sessionOf(owner) != nil {
			var moved bool
			if moved, err = p.giveWay(); moved && err == nil {
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

// standsIn counts the places in lines that a session has. It reports whether the
// session is in use still.
func (s *Store) standsIn(x *session, more int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.places += more
	x.used = time.Now()
	return s.sessions[x.timeout] == x
}

// place is one in the line for a resource.
type place struct {
	*session
	path, node string
	first      bool // nobody is before it, nor will be
}

// watch watches the one before in line, or the lease for the first, and tells
// that one which session has the lease, 0 if it is free.
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
		if !errors.Is(err, zk.ErrNoNode) { // else it has just left
			return 0, changes, err
		}
	}
}

// giveWay moves the first to the end of the line, if there are others.
func (p *place) giveWay() (moved bool, err error) {
	_, after, err := p.neighbours()
	if err != nil || after == "" {
		return false, err
	}
	last := p.node
	if p.node, err = p.lineUp(p.path); err != nil {
		p.node = last
		return false, err
	}
	p.first = false
	return true, p.leaveLine(last)
}

// lineUp makes a node at the end of the line.
func (x *session) lineUp(path string) (place string, err error) {
	place, err = x.conn.CreateProtectedEphemeralSequential(path+"/waiter-", nil, x.acl())
	if errors.Is(err, zk.ErrNoNode) {
		if err := x.makeNode(path, "0"); err != nil {
			return "", err
		}
		place, err = x.conn.CreateProtectedEphemeralSequential(path+"/waiter-", nil, x.acl())
	}
	return place, err
}

// leaveLine deletes a place, which would hold up those behind it for as long as
// the session lasts. What fails is tried again when the session is next touched.
func (x *session) leaveLine(node string) error {
	_, err := repeat(context.Background(), func() (struct{}, error) { return struct{}{}, x.deletePlace(node) })
	if err != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.left = append(x.left, node)
	}
	return err
}

// leaveLines deletes the places that could not be deleted when they were left.
func (x *session) leaveLines() {
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

var errNoPlace = errors.New("the place in the line is gone")

// neighbours are who stands in line before and after a place, "" for nobody.
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

// number is what ZooKeeper puts after the name of a sequential node: ten digits.
func number(name string) string { return name[max(0, len(name)-10):] }
