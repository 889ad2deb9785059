// Package zookeeper keeps leases in ZooKeeper, version 3.5 or later.
//
// A resource has the persistent node /wirefence/NAME, whose data is its token counter,
// and below it the ephemeral node lease while it is held. One transaction creates the
// lease node and counts the token, on condition that the version of the counter has not
// changed since it was read. So no token is counted twice, even if the server from which
// the counter was read lags behind. The store uses a counter rather than the zxid of the
// transaction because a counter can be raised, and because a transaction cannot read a
// number to add to its zxid. An ensemble that is wiped, or restored from a snapshot,
// counts tokens again; a client with a Sealer raises the counter above the last token in
// PostgreSQL.
//
// # Time
//
// A lease ends with the session of its node. The sessions belong to the store, and leases
// with similar ttls share one: its timeout is the ttl plus one tick of the ensemble,
// rounded up by less than a second, or a quarter if that is more. The store closes a
// session that has had no leases and watches for half a minute. A server tells the leader
// in a ping each half tick which sessions live. So the store pings the server as often,
// with or without leases: a grant lasts from when the leader last heard of its session.
// A session may last as long as the process, so the store itself deletes the node of a
// lease that was not renewed for its ttl.
//
//   - A process that dies, stalls or is cut off no longer keeps the session alive: the
//     lease ends when the session expires, at most the ttl and two ticks later, plus
//     the rounding, or after the minimal session timeout of the ensemble if that is
//     longer.
//   - A process that stalls and continues before that deletes the nodes of leases that
//     it did not renew in time.
//   - A lost connection that is replaced within the timeout of the session, with any
//     server, changes nothing. After the timeout the store begins a new session, which
//     has none of the old leases: they cannot be renewed.
//   - If the store is closed while it has leases, their sessions expire.
//
// So only the store that acquired a lease can renew it; any can release it.
//
// Watches are in a session of their own, which has only one connection.
package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/address"
	"github.com/wirefence/wirefence/lockclient"
)

// Options of a Store. Servers must be set.
type Options struct {
	// Servers are some or all members of the ensemble, as host:port.
	Servers []string
	// Root is the path of the parent of all nodes, default /wirefence. All clients that
	// compete for a resource must use the same root.
	Root string
	// User and Password are for ZooKeeper's digest scheme. With a user, only this user
	// has access to the nodes that the store creates.
	User, Password string
	// Reload returns a connection string anew for each new session, which takes its user and
	// password. With another password a user is another one to ZooKeeper, and has no access to
	// the nodes of before. Default: all sessions have User and Password.
	Reload func(ctx context.Context) (url string, err error)
	// TLS is nil for connections without TLS.
	TLS *tls.Config
	// Tick must be at least the ensemble's tickTime, default 2s. With a lower one, a
	// lease could end before its ttl when a server is cut off from the leader.
	Tick time.Duration
}

// Store is a lease store in ZooKeeper. It is safe for concurrent use.
type Store struct {
	opts    Options
	notices *lockclient.Notices
	running sync.WaitGroup // requests, which may outlive the calls that sent them

	mu       sync.Mutex
	closed   bool
	failure  error // of the last try to connect
	sessions map[sessionKey]*session
	grants   map[grantKey]*grant
}

var (
	_ lockclient.Store    = (*Store)(nil)
	_ lockclient.Notifier = (*Store)(nil)
	_ lockclient.Looker   = (*Store)(nil)
	_ lockclient.Counter  = (*Store)(nil)

	_ lockclient.Transient = (*Store)(nil)
)

// New makes a store. It connects at the first request.
func New(opts Options) (*Store, error) {
	if len(opts.Servers) == 0 {
		return nil, errors.New("zookeeper: no servers")
	}
	if opts.Root == "" {
		opts.Root = "/wirefence"
	}
	if opts.Tick == 0 {
		opts.Tick = 2 * time.Second
	}
	if !strings.HasPrefix(opts.Root, "/") || strings.HasSuffix(opts.Root, "/") {
		return nil, fmt.Errorf("zookeeper: %q is not the path of a root node", opts.Root)
	}
	if opts.Tick < time.Millisecond {
		return nil, fmt.Errorf("zookeeper: a tick of %v is less than 1ms", opts.Tick)
	}
	s := &Store{opts: opts, sessions: map[sessionKey]*session{}, grants: map[grantKey]*grant{}}
	s.notices = lockclient.NewNotices(lockclient.FollowNames(s.follow))
	return s, nil
}

// Open makes a store for a connection string such as
// zookeeper://user:password@host1:2181,host2/root?tick=2s&tls=true. Root and
// settings may be left out; ca, cert and key name PEM files for TLS. It does not
// connect yet.
func Open(url string) (*Store, error) { return OpenReloading(url, nil) }

// OpenReloading is Open with the option Reload.
func OpenReloading(url string, reload func(ctx context.Context) (url string, err error)) (*Store, error) {
	u, err := address.Parse(url, "zookeeper", "2181", "tick")
	if err != nil {
		return nil, fmt.Errorf("ZooKeeper connection string: %w", err)
	}
	opts := Options{Servers: u.Hosts, User: u.User, Password: u.Password, Reload: reload}
	if u.Path != "" {
		opts.Root = "/" + u.Path
	}
	if opts.TLS, err = u.TLS(); err != nil {
		return nil, fmt.Errorf("ZooKeeper connection string: %w", err)
	}
	if tick, ok := u.Settings["tick"]; ok {
		if opts.Tick, err = time.ParseDuration(tick); err != nil || opts.Tick <= 0 {
			return nil, fmt.Errorf("ZooKeeper connection string: tick is %q, not a duration like 2s", tick)
		}
	}
	return New(opts)
}

// Source is what the tokens of this store come from.
const Source fence.Source = "zookeeper"

// URL is a connection string, as a setting.
type URL string

// Source returns what the tokens come from.
func (URL) Source() fence.Source { return Source }

// Close ends the sessions of the store and returns when no goroutine of it runs any more.
// The lockclient.Client on the store must be closed before; a lease that is still held
// then ends when its session expires.
func (s *Store) Close() error {
	s.notices.Wait()
	s.mu.Lock()
	s.closed = true
	sessions := s.sessions
	s.sessions = nil
	holding := map[*session]bool{}
	for _, g := range s.grants {
		if g.session != nil {
			holding[g.session] = true
		}
	}
	s.mu.Unlock()
	for _, x := range sessions {
		x.close(holding[x])
	}
	s.running.Wait()
	return nil
}

// Path returns the path of the node of a resource.
func (s *Store) Path(resource fence.Resource) string {
	name := strings.ReplaceAll(resource.Encode(), "/", "%2F")
	if name == "." || name == ".." { // not allowed in a path
		name = strings.ReplaceAll(name, ".", "%2E")
	}
	return s.opts.Root + "/" + name
}

// leaseOf returns the path of the lease node below a resource's node.
func leaseOf(path string) string { return path + "/lease" }

// Acquire implements lockclient.Store. It takes two requests, one of which writes.
func (s *Store) Acquire(ctx context.Context, resource fence.Resource, grantID string, ttl time.Duration) (lockclient.Attempt, error) {
	return onGrant(ctx, s, "acquiring the lease of", resource, lockclient.HolderOf(grantID), func(g *grant) (lockclient.Attempt, error) {
		return repeat(ctx, func() (lockclient.Attempt, error) { return s.tryAcquire(ctx, g, ttl) })
	})
}

// Renew implements lockclient.Store. It returns an error for a lease that another store
// acquired.
func (s *Store) Renew(ctx context.Context, resource fence.Resource, grantID string, ttl time.Duration) (bool, error) {
	return onGrant(ctx, s, "renewing the lease of", resource, lockclient.HolderOf(grantID), func(g *grant) (bool, error) {
		return repeat(ctx, func() (bool, error) { return s.tryRenew(ctx, g, ttl) })
	})
}

// Release implements lockclient.Store. If it fails, the store keeps trying.
func (s *Store) Release(ctx context.Context, resource fence.Resource, grantID string) (bool, error) {
	return s.Free(ctx, resource, lockclient.HolderOf(grantID))
}

// Free implements lockclient.Looker.
func (s *Store) Free(ctx context.Context, resource fence.Resource, holder string) (bool, error) {
	return onGrant(ctx, s, "releasing the lease of", resource, holder, func(g *grant) (bool, error) {
		held, err := s.end(ctx, g)
		if err != nil && g.session != nil {
			g.until = time.Now()
		}
		return held, err
	})
}

// EndsWithProcess implements lockclient.Transient: the node of a lease goes with its session.
func (s *Store) EndsWithProcess() bool { return true }

// Raise implements lockclient.Store.
func (s *Store) Raise(ctx context.Context, resource fence.Resource, token fence.Token) error {
	path := s.Path(resource)
	_, err := onSession(ctx, s, "raising the token counter of", resource, func(x *session) (struct{}, error) {
		count, version, err := x.counter(path)
		if err != nil || count >= int64(token) {
			return struct{}{}, err
		}
		_, err = x.conn.Set(path, strconv.AppendInt(nil, int64(token), 10), version)
		if errors.Is(err, zk.ErrBadVersion) {
			err = errOrAgain(x.catchUp(path))
		}
		return struct{}{}, err
	})
	return err
}

// Look implements lockclient.Looker. Only the holder's own store knows the remaining
// time; Look returns the whole ttl.
func (s *Store) Look(ctx context.Context, resource fence.Resource) (lockclient.Attempt, error) {
	path := s.Path(resource)
	return onSession(ctx, s, "looking at the lease of", resource, func(x *session) (lockclient.Attempt, error) {
		if err := x.catchUp(path); err != nil {
			return lockclient.Attempt{}, err
		}
		data, _, err := x.conn.Get(leaseOf(path))
		if errors.Is(err, zk.ErrNoNode) {
			return lockclient.Attempt{}, nil
		}
		holder, ttl := parseLease(data)
		return lockclient.Attempt{Holder: holder, Remaining: ttl}, err
	})
}

// Counted implements lockclient.Counter. Unlike an acquire it creates no node.
func (s *Store) Counted(ctx context.Context, resource fence.Resource) (fence.Token, error) {
	path := s.Path(resource)
	return onSession(ctx, s, "reading the token counter of", resource, func(x *session) (fence.Token, error) {
		data, _, err := x.conn.Get(path)
		if errors.Is(err, zk.ErrNoNode) {
			return 0, nil
		} else if err != nil {
			return 0, err
		}
		count, err := parseCount(path, data)
		return fence.Token(count), err
	})
}
