// Package relay passes an application's connections to Redis on, and makes a lease of each lock that
// the application takes there: it counts a token in the same transaction, seals it in PostgreSQL
// while the reply is held back, and keeps the lease as long as the application keeps the lock.
// What isn't a lock's command passes as bytes.
//
// Of this module it imports fence, lockclient, internal/adopt and internal/quietlog.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/quietlog"
)

// Relay serves the connections of one application. It is safe for concurrent use.
type Relay struct {
	opts     Options
	upstream *goredis.Options
	locks    lockSet
	metrics  *metrics
	lines    quietlog.Limiter
	log      *slog.Logger // of what may happen to many clients at once
	listener net.Listener

	mu       sync.Mutex
	tracks   map[placeOf]*track
	clients  map[int]*goredis.Client // of the relay's own, by database
	users    map[string]bool         // who may run the scripts
	sessions map[*session]bool
	ending   bool
	all      sync.WaitGroup // of sessions
}

// New makes a relay.
func New(opts Options) (*Relay, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	r := &Relay{opts: opts.withDefaults(), tracks: map[placeOf]*track{}, clients: map[int]*goredis.Client{}, users: map[string]bool{}, sessions: map[*session]bool{}}
	r.log = r.lines.On(r.opts.Logger)
	r.upstream, _ = parseUpstream(opts.Upstream)
	r.locks.locks = map[string]*lock{}
	for key, resource := range opts.Locks {
		r.locks.locks[key] = &lock{key: key, resource: resource}
		r.locks.lengths[byte(len(key))] = true
	}
	var err error
	r.metrics, err = newMetrics(opts.Registerer)
	return r, err
}

// ErrNotReady says that the server can't be reached or doesn't take commands yet: Listen may succeed
// later.
var ErrNotReady = errors.New("not ready")

// Listen looks whether the server is one that the relay can follow locks on, and whether the user of
// Upstream may run its scripts, and opens the listener. It takes no longer than dialTimeout.
func (r *Relay) Listen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := r.probe(ctx); err != nil {
		return fmt.Errorf("redis at %s: %w", r.upstream.Addr, err)
	}
	listener, err := listenOn(r.opts.Listen)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listener = listener
	return nil
}

// Addr is the address of the listener.
func (r *Relay) Addr() net.Addr { return r.listener.Addr() }

// Serve serves clients until Shutdown. Then it returns nil.
func (r *Relay) Serve() error {
	for {
		conn, err := r.listener.Accept()
		if err == nil {
			r.accept(conn)
			continue
		}
		if r.isEnding() {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		r.log.Warn("cannot accept a connection to Redis", "error", err)
	}
}

func (r *Relay) isEnding() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ending
}

// accept starts a session of its own for a connection.
func (r *Relay) accept(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending || len(r.sessions) >= r.opts.MaxConnections {
		r.all.Go(func() { rejectClient(conn) })
		return
	}
	s := newSession(r, conn)
	r.sessions[s] = true
	r.metrics.connections.Inc()
	r.all.Go(func() {
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.sessions, s)
			r.metrics.connections.Dec()
		}()
		s.serve()
	})
}

// Shutdown accepts no more clients, and ends each connection when the commands that it has sent are
// answered, and its seals done, or when ctx ends. It may be called more than once.
func (r *Relay) Shutdown(ctx context.Context) error {
	r.mu.Lock()
	r.ending = true
	if r.listener != nil {
		_ = r.listener.Close()
	}
	for s := range r.sessions {
		s.drain()
	}
	r.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		r.all.Wait()
		close(ended)
	}()
	var err error
	select {
	case <-ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
		r.mu.Lock()
		for s := range r.sessions {
			s.end(errEnding)
		}
		r.mu.Unlock()
		<-ended
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for db, client := range r.clients {
		_ = client.Close()
		delete(r.clients, db)
	}
	r.lines.End()
	return err
}

// track returns the track of a lock in a database.
func (r *Relay) track(l *lock, db int) *track {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := placeOf{db, l.key}
	if r.tracks[at] == nil {
		r.tracks[at] = newTrack(l, db, r.opts.Book)
	}
	return r.tracks[at]
}

// own returns a client of the relay's own for a database.
func (r *Relay) own(db int) *goredis.Client {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clients[db] == nil {
		o := *r.upstream
		o.DB, o.DialTimeout, o.PoolSize, o.DialerRetries, o.ContextTimeoutEnabled = db, dialTimeout, 8, 1, true
		o.CredentialsProviderContext = r.opts.credentials()
		r.clients[db] = goredis.NewClient(&o)
	}
	return r.clients[db]
}

// dial connects to the server for a client.
func (r *Relay) dial() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	return goredis.NewDialer(&goredis.Options{DialTimeout: dialTimeout, TLSConfig: r.upstream.TLSConfig})(ctx, r.upstream.Network, r.upstream.Addr)
}
