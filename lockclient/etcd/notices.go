package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// Notify implements lockclient.Notifier. It returns before the store watches, and sends
// once when it does, since a release may have come before. An expired lease gives a
// notice, too. There are no notices while no server is reachable, and after a cluster was
// restored from a snapshot until its revision has caught up.
func (s *Store) Notify(_ context.Context, resource fence.Resource, released chan<- struct{}) (func(), error) {
	return s.notices.Add(s.LeaseKey(resource), released), nil
}

// follow watches a key until ctx or the watch ends, and reports whether it has watched.
// All watches share one stream. It ignores errors: waiters poll.
func (s *Store) follow(ctx context.Context, n *lockclient.Notices, key string) (watched bool) {
	client, err := s.client.get(ctx)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := client.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	for event := range events {
		switch {
		case event.Created:
			watched = true
			n.Hears(ctx, key)
		case len(event.Events) > 0:
			n.Wake(key)
		}
	}
	return watched
}
