package lockclient

import (
	"context"
	"sync"
)

// Notices is what a store needs to be a Notifier: it keeps the waiters by the
// name under which the server tells of a release, runs the store's listener
// while there are any, and passes the notices on. It is safe for concurrent
// use.
type Notices struct {
	listen  func(ctx context.Context, n *Notices)
	running sync.WaitGroup // listeners; one may end while the next begins
	changed chan struct{}  // holds one element when waiting has got or lost a name

	mu      sync.Mutex
	waiting map[string]map[chan<- struct{}]struct{}
	stop    context.CancelFunc // of the listener; nil while nobody waits
	told    map[string]bool    // what Changes told this listener; true once it hears the name
	all     bool               // this listener hears every name
}

// NewNotices makes Notices whose listener is run in a goroutine while somebody
// waits, with a context that ends when nobody does any more. It must not return
// before. It calls Hears or HearsAll, and Wake, and keeps its errors to itself:
// waiters try again from time to time, whether they hear anything or not.
func NewNotices(listen func(ctx context.Context, n *Notices)) *Notices {
	return &Notices{
		listen: listen, changed: make(chan struct{}, 1), waiting: map[string]map[chan<- struct{}]struct{}{},
	}
}

// Add makes a waiter of a name, to whose channel is sent when the listener has
// begun to hear the name and at each Wake, unless it is full, until stop is
// called. Add and stop don't wait for the server. stop may be called again.
func (n *Notices) Add(name string, released chan<- struct{}) (stop func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting[name] == nil {
		n.waiting[name] = map[chan<- struct{}]struct{}{}
		n.poke()
	}
	n.waiting[name][released] = struct{}{}
	if n.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		n.stop, n.told, n.all = stop, map[string]bool{}, false
		n.running.Go(func() { n.listen(ctx, n) })
	} else if n.all || n.told[name] {
		send(released)
	}
	return sync.OnceFunc(func() { n.remove(name, released) })
}

func (n *Notices) remove(name string, released chan<- struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.waiting[name], released)
	if len(n.waiting[name]) > 0 {
		return
	}
	delete(n.waiting, name)
	n.poke()
	if len(n.waiting) == 0 {
		n.stop()
		n.stop = nil
	}
}

func (n *Notices) poke() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Changed has an element when Changes may have something to tell.
func (n *Notices) Changed() <-chan struct{} { return n.changed }

// Changes tells the listener that got ctx which names to begin and to cease to
// listen to, compared with what it was told before. A listener that hears all
// names needs no telling.
func (n *Notices) Changes(ctx context.Context) (begin, cease []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		n.poke() // it was meant for the next listener
		return nil, nil
	}
	for name := range n.waiting {
		if _, ok := n.told[name]; !ok {
			begin = append(begin, name)
			n.told[name] = false
		}
	}
	for name := range n.told {
		if _, ok := n.waiting[name]; !ok {
			cease = append(cease, name)
			delete(n.told, name)
		}
	}
	return begin, cease
}

// Hears notes that the listener that got ctx hears of a name's releases from
// now on, and wakes its waiters: one may have come before. It is called again
// after an interruption.
func (n *Notices) Hears(ctx context.Context, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		return // another may listen by now
	}
	if _, ok := n.told[name]; ok {
		n.told[name] = true
	}
	n.wake(name)
}

// HearsAll is Hears for every name, those to come included.
func (n *Notices) HearsAll(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	n.all = true
	for name := range n.waiting {
		n.wake(name)
	}
}

// Wake tells the waiters of a name of a release.
func (n *Notices) Wake(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wake(name)
}

func (n *Notices) wake(name string) {
	for released := range n.waiting[name] {
		send(released)
	}
}

// send leaves out a waiter that is about to look anyway.
func send(released chan<- struct{}) {
	select {
	case released <- struct{}{}:
	default:
	}
}

// Wait returns when no listener runs any more. No waiter may be left.
func (n *Notices) Wait() { n.running.Wait() }
