package zookeeper

import (
	"context"
	"errors"
	"slices"
	"strings"

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
// wakes one store.
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
	place, err := x.lineUp(path)
	if err != nil {
		return false
	}
	defer func() { _ = x.conn.Delete(place, -1) }() // else it ends with the session
	for ctx.Err() == nil {
		before, err := x.before(path, place)
		if err != nil {
			return heard
		}
		free, changes, err := x.watch(path, before)
		if err != nil {
			return heard
		}
		if !heard {
			n.Hears(ctx, path)
			heard = true
		} else if free {
			n.Wake(path)
		}
		if changes == nil {
			continue // the one before has just left
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

var errNoPlace = errors.New("the place in the line is gone")

// before returns who stands in line before a place; "" for the first.
func (x *session) before(path, place string) (string, error) {
	children, _, err := x.conn.Children(path)
	if err != nil {
		return "", err
	}
	line := slices.DeleteFunc(children, func(name string) bool { return !strings.Contains(name, "-waiter-") })
	slices.SortFunc(line, func(a, b string) int { return strings.Compare(number(a), number(b)) })
	switch i := slices.Index(line, strings.TrimPrefix(place, path+"/")); i {
	case -1:
		return "", errNoPlace
	case 0:
		return "", nil
	default:
		return path + "/" + line[i-1], nil
	}
}

// number is what ZooKeeper puts after the name of a sequential node: ten digits.
func number(name string) string { return name[max(0, len(name)-10):] }

// watch watches the one before in line, or the lease for the first, and tells
// the first whether that is free. There is nothing to watch of one that has left.
func (x *session) watch(path, before string) (free bool, changes <-chan zk.Event, err error) {
	if before == "" {
		held, _, changes, err := x.conn.ExistsW(leaseOf(path))
		return !held, changes, err
	}
	_, _, changes, err = x.conn.GetW(before)
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil, nil
	}
	return false, changes, err
}
