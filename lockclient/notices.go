package lockclient

import (
	"context"
	"sync"
)

// Notices implements Notifier for a store: it keeps the waiters by the name under which
// the server announces a release, runs the store's listener while there are any, and
// passes the notices on. It is safe for concurrent use.
type Notices struct {
	listen  func(ctx context.Context, n *Notices)
	running sync.WaitGroup // the listeners; one may end while the next begins
	changed chan struct{}  // holds one element when a name was added to waiting or removed

	mu      sync.Mutex
	waiting map[string]map[chan<- struct{}]struct{}
	stop    context.CancelFunc // ends the listener; nil while there are no waiters
	told    map[string]bool    // the names that Changes gave this listener; true once it hears the name
	all     bool               // this listener hears every name
}

// NewNotices returns Notices that run listen in a goroutine while there are waiters, with
// a context that ends when there are none. listen must not return before. It calls Hears
// or HearsAll, and Wake, and keeps its errors to itself: waiters also try again from time
// to time.
func NewNotices(listen func(ctx context.Context, n *Notices)) *Notices {
	return &Notices{
		listen: listen, changed: make(chan struct{}, 1), waiting: map[string]map[chan<- struct{}]struct{}{},
	}
}

// Add registers a waiter for a name until stop is called. The channel gets an element
// when the listener has begun to hear the name and at each Wake, unless it is full. Add
// and stop do not wait for the server. stop may be called again.
func (n *Notices) Add(name string, released chan<- struct{}) (stop func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting[name] == nil {
		n.waiting[name] = map[chan<- struct{}]struct{}{}
		n.signalChange()
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
	n.signalChange()
	if len(n.waiting) == 0 {
		n.stop()
		n.stop = nil
	}
}

func (n *Notices) signalChange() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Changed returns a channel that has an element when Changes may have something to
// report.
func (n *Notices) Changed() <-chan struct{} { return n.changed }

// Changes tells the listener that got ctx which names to begin and to cease to listen to,
// compared with the last call. A listener that hears all names need not call it.
func (n *Notices) Changes(ctx context.Context) (begin, cease []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		n.signalChange() // the element of Changed was for the next listener
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

// Hears says that the listener that got ctx hears the releases of a name from now on, and
// wakes the waiters: a release may have come before. The listener calls it again after an
// interruption.
func (n *Notices) Hears(ctx context.Context, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		return // another listener may run by now
	}
	if _, ok := n.told[name]; ok {
		n.told[name] = true
	}
	n.wake(name)
}

// HearsAll is Hears for every name, later ones included.
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

// Wake tells the waiters of a name that it was released.
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

// send skips a waiter whose channel is full, which will ask anyway.
func send(released chan<- struct{}) {
	select {
	case released <- struct{}{}:
	default:
	}
}

// Wait returns when no listener runs any more. There must be no waiters left.
func (n *Notices) Wait() { n.running.Wait() }
