package zookeeper

import (
	"context"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// Notify implements lockclient.Notifier. It returns before the store watches, and sends
// once when it does, since a release may have come before. An expired lease gives a
// notice, too. While no server is reachable, there are no notices.
func (s *Store) Notify(_ context.Context, resource fence.Resource, released chan<- struct{}) (func(), error) {
	return s.notices.Add(leaseOf(s.Path(resource)), released), nil
}

// follow watches a lease until ctx or the connection ends, and reports whether it has watched.
// It ignores errors: waiters poll.
func (s *Store) follow(ctx context.Context, n *lockclient.Notices, path string) (watched bool) {
	x, err := s.watcher(ctx)
	if err != nil {
		return false
	}
	defer s.occupy(x, -1)
	if !s.occupy(x, 1) {
		return false
	}
	for {
		held, _, changes, err := x.conn.ExistsW(path)
		switch {
		case err != nil:
			return watched
		case !watched:
			n.Hears(ctx, path)
			watched = true
		case !held:
			n.Wake(path)
		}
		select {
		case change := <-changes:
			if change.Err != nil {
				return true
			}
		case <-x.over:
			return true
		case <-ctx.Done():
			return true
		}
	}
}
