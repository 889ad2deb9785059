package redis

import (
	"context"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
)

// notices passes published releases on to waiters. All waiters of a store share
// one connection and the goroutine that listens on it, which are there while
// somebody waits.
type notices struct {
	client  goredis.UniversalClient
	changed chan struct{} // holds one element when waiting has changed

	mu        sync.Mutex
	waiting   map[string]map[chan<- struct{}]struct{} // by channel name
	listening bool
	ended     chan struct{} // closed when the last listen has ended
}

func newNotices(client goredis.UniversalClient) *notices {
	n := &notices{
		client: client, changed: make(chan struct{}, 1), ended: make(chan struct{}),
		waiting: map[string]map[chan<- struct{}]struct{}{},
	}
	close(n.ended)
	return n
}

// Notify implements lockclient.Notifier. It returns before the subscription
// takes effect, and sends once when it does, since a release may have come
// before. While Redis can't be reached there are no notices.
func (s *Store) Notify(_ context.Context, resource fence.Resource, released chan<- struct{}) (func(), error) {
	name := channel(resource)
	s.notices.add(name, released)
	return sync.OnceFunc(func() { s.notices.remove(name, released) }), nil
}

func (n *notices) add(name string, released chan<- struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting[name] == nil {
		n.waiting[name] = map[chan<- struct{}]struct{}{}
	}
	n.waiting[name][released] = struct{}{}
	if !n.listening {
		n.listening, n.ended = true, make(chan struct{})
		go n.listen(n.ended)
	}
	n.poke()
}

func (n *notices) remove(name string, released chan<- struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.waiting[name], released)
	if len(n.waiting[name]) == 0 {
		delete(n.waiting, name)
	}
	n.poke()
}

func (n *notices) poke() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// listen keeps the subscriptions as the waiters want them and wakes the
// waiters. It ends when nobody waits.
func (n *notices) listen(ended chan<- struct{}) {
	defer close(ended)
	ctx := context.Background()
	pubsub := n.client.Subscribe(ctx)
	defer pubsub.Close()
	messages := pubsub.ChannelWithSubscriptions()
	subscribed := map[string]struct{}{}
	for {
		select {
		case <-n.changed:
			more, less, any := n.difference(subscribed)
			if !any {
				return
			}
			// An error is none of ours: go-redis connects again and then
			// subscribes to all that it was ever told.
			if len(more) > 0 {
				_ = pubsub.Subscribe(ctx, more...)
			}
			if len(less) > 0 {
				_ = pubsub.Unsubscribe(ctx, less...)
			}
		case message := <-messages:
			switch m := message.(type) {
			case *goredis.Message:
				n.wake(m.Channel)
			case *goredis.Subscription:
				n.wake(m.Channel)
			}
		}
	}
}

// difference brings subscribed to what is wanted and says how they differed. If
// nothing is wanted it lets the next add start a new listener.
func (n *notices) difference(subscribed map[string]struct{}) (more, less []string, any bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.waiting) == 0 {
		n.listening = false
		return nil, nil, false
	}
	for name := range n.waiting {
		if _, ok := subscribed[name]; !ok {
			more = append(more, name)
			subscribed[name] = struct{}{}
		}
	}
	for name := range subscribed {
		if _, ok := n.waiting[name]; !ok {
			less = append(less, name)
			delete(subscribed, name)
		}
	}
	return more, less, true
}

// wake sends to every waiter of a channel that isn't about to look anyway.
func (n *notices) wake(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for released := range n.waiting[name] {
		select {
		case released <- struct{}{}:
		default:
		}
	}
}

// wait returns when nothing listens any more. No waiter may be left.
func (n *notices) wait() {
	n.mu.Lock()
	ended := n.ended
	n.mu.Unlock()
	<-ended
}
