package redis

import (
	"context"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// Notify implements lockclient.Notifier. It returns before the subscription takes effect,
// and sends once when it does, since a release may have come before. While Redis is
// unreachable there are no notices.
//
// All waiters of a store share one connection, which is open while there are waiters.
func (s *Store) Notify(_ context.Context, resource fence.Resource, released chan<- struct{}) (func(), error) {
	return s.notices.Add(channel(resource), released), nil
}

// listen subscribes to the names of the waiters. It ignores errors: go-redis reconnects
// and repeats all subscriptions, and Redis confirms them again.
func (s *Store) listen(ctx context.Context, n *lockclient.Notices) {
	pubsub := s.client.Subscribe(ctx)
	defer pubsub.Close()
	messages := pubsub.ChannelWithSubscriptions()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.Changed():
			begin, cease := n.Changes(ctx)
			if len(begin) > 0 {
				_ = pubsub.Subscribe(ctx, begin...)
			}
			if len(cease) > 0 {
				_ = pubsub.Unsubscribe(ctx, cease...)
			}
		case message, open := <-messages:
			if !open { // the client was closed: there are no notices any more
				<-ctx.Done()
				return
			}
			switch m := message.(type) {
			case *goredis.Message:
				n.Wake(m.Channel)
			case *goredis.Subscription:
				if m.Kind == "subscribe" {
					n.Hears(ctx, m.Channel)
				}
			}
		}
	}
}
