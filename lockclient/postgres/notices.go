package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
)

// notices passes notified releases on to waiters. All waiters of a store share
// one connection and the goroutine that listens on it, which are there while
// somebody waits.
type notices struct {
	pool    *pgxpool.Pool
	running sync.WaitGroup // listening goroutines; one may end while the next begins

	mu      sync.Mutex
	waiting map[string]map[chan<- struct{}]struct{} // by payload
	stop    context.CancelFunc                      // of the goroutine that listens; nil while nobody waits
	live    bool                                    // that goroutine has begun to listen
}

func newNotices(pool *pgxpool.Pool) *notices {
	return &notices{pool: pool, waiting: map[string]map[chan<- struct{}]struct{}{}}
}

// payload is what wirefence.release_notice makes of a resource.
func payload(resource fence.Resource) string {
	sum := sha256.Sum256([]byte(resource))
	return hex.EncodeToString(sum[:])
}

// Notify implements lockclient.Notifier. It returns before the store listens,
// and sends once when it does, since a release may have come before. While the
// server can't be reached, and in a session that a transaction pooler lends
// out, there are no notices.
func (s *Store) Notify(_ context.Context, resource fence.Resource, released chan<- struct{}) (func(), error) {
	name := payload(resource)
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
	if n.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		n.stop = stop
		n.running.Go(func() { n.listen(ctx) })
	} else if n.live {
		send(released)
	}
}

func (n *notices) remove(name string, released chan<- struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.waiting[name], released)
	if len(n.waiting[name]) == 0 {
		delete(n.waiting, name)
	}
	if len(n.waiting) == 0 && n.stop != nil {
		n.stop()
		n.stop, n.live = nil, false
	}
}

// longestPause bounds the pause before a lost connection is made anew.
const longestPause = 5 * time.Second

// listen keeps a connection that listens until ctx ends.
func (n *notices) listen(ctx context.Context) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, longestPause) {
		listened := n.follow(ctx)
		n.setLive(ctx, false)
		if listened {
			pause = 50 * time.Millisecond
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// follow listens on a connection until that or ctx ends, and reports whether it
// came so far. Errors are none of the waiters': they poll.
func (n *notices) follow(ctx context.Context) (listened bool) {
	conn, err := n.connect(ctx)
	if err != nil {
		return false
	}
	defer closeConnection(conn)
	if _, err := conn.Exec(ctx, "LISTEN wirefence_released"); err != nil {
		return false
	}
	n.setLive(ctx, true)
	for {
		notice, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true
		}
		n.wake(notice.Payload)
	}
}

// connect takes a connection out of the pool, which has the means to make one.
func (n *notices) connect(ctx context.Context) (*pgx.Conn, error) {
	pooled, err := n.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("listening for releases: %w", err)
	}
	return pooled.Hijack(), nil
}

// closeConnection returns when the driver has let go of the connection, too.
func closeConnection(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
	<-conn.PgConn().CleanupDone()
}

// setLive notes whether ctx's goroutine listens, and wakes everybody when it
// has begun to.
func (n *notices) setLive(ctx context.Context, live bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		return // another may listen by now
	}
	n.live = live
	if live {
		for _, all := range n.waiting {
			for released := range all {
				send(released)
			}
		}
	}
}

// wake sends to every waiter of a resource.
func (n *notices) wake(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
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
