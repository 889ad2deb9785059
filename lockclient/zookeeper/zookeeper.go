// Package zookeeper keeps leases in ZooKeeper, version 3.5 or later.
//
// A resource has the node /wirefence/NAME for ever, whose data is its token
// counter, and below it the ephemeral node lease while it is held. One
// transaction creates the lease node and counts the token, under the condition
// that the counter's version is still the one that was read: a counter that was
// read from a server which lags behind counts nothing twice. A counter, rather
// than the transaction's zxid, since it can be raised, and since a transaction
// can't read what would be added to a zxid. An ensemble that is wiped, or restored
// from a snapshot, counts again; a client with a Sealer raises the counter above
// what PostgreSQL has seen.
//
// # Time
//
// A lease ends with the session that its node belongs to. Sessions belong to the
// store, and leases of like ttls share one: it outlasts a renewal by the ttl and one
// tick of the ensemble, rounded up by less than a second, or a quarter if that is
// more. A session without leases and waiters is closed after half a minute. The
// tick is what a server may take to tell the leader that a session lives, in a ping
// each half of it; the store says so to the server as often, with or without leases:
// a grant lasts from when the leader last heard of its session. Since a session may
// go on as long as the process does, the store itself deletes the node of a lease
// that wasn't renewed for its ttl.
//
//   - A process that dies, stalls or is cut off stops to keep the session alive:
//     the lease ends when that expires, at most the ttl and two ticks later, and
//     what was rounded up, or the ensemble's least session timeout if that is longer.
//   - A process that stalls and comes back before that deletes what was not
//     renewed in time.
//   - A connection that breaks and is made again, with any server, within the
//     session's time changes nothing. After it the driver begins a new session,
//     in which there are none of the old leases: they can't be renewed.
//   - A store that is closed while it has leases leaves their sessions to expire.
//
// So only the store that acquired a lease can renew it; any can release it.
package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/internal/address"
)

// Options of a Store. Servers must be set.
type Options struct {
	// Servers are some or all members of the ensemble, as host:port.
	Servers []string
	// Root is the path of the node that all others are below, default
	// /wirefence. All who compete for a resource must use the same.
	Root string
	// User and Password are for ZooKeeper's digest scheme. With a user, nodes
	// are made so that only this user has access to them.
	User, Password string
	// TLS is nil for connections without.
	TLS *tls.Config
	// Tick is the ensemble's tickTime or more, default 2s. Were it less, a lease
	// could end before its ttl when a server is cut off from the leader.
	Tick time.Duration
}

// Store is a lease store in ZooKeeper. It is safe for concurrent use.
type Store struct {
	opts    Options
	notices *lockclient.Notices
	running sync.WaitGroup // requests, which may outlive the calls that made them

	mu       sync.Mutex
	closed   bool
	sessions map[time.Duration]*session // by the timeout that was asked for
	grants   map[grantKey]*grant
}

var (
	_ lockclient.Store    = (*Store)(nil)
	_ lockclient.Notifier = (*Store)(nil)
)

// New makes a store. It connects when it is used.
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
		return nil, fmt.Errorf("zookeeper: %q is no path of a root node", opts.Root)
	}
	if opts.Tick < time.Millisecond {
		return nil, fmt.Errorf("zookeeper: a tick of %v is less than 1ms", opts.Tick)
	}
	s := &Store{opts: opts, sessions: map[time.Duration]*session{}, grants: map[grantKey]*grant{}}
	s.notices = lockclient.NewNotices(lockclient.FollowNames(s.follow))
	return s, nil
}

// Open makes a store for a connection string such as
// zookeeper://user:password@host1:2181,host2/root?tick=2s&tls=true. Root and
// settings may be left out; ca, cert and key name PEM files for TLS. It does not
// connect yet.
func Open(url string) (*Store, error) {
	u, err := address.Parse(url, "zookeeper", "2181", "tick")
	if err != nil {
		return nil, fmt.Errorf("ZooKeeper connection string: %w", err)
	}
	opts := Options{Servers: u.Hosts, User: u.User, Password: u.Password}
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

// Close ends the store's sessions and returns when nothing of it runs any more.
// The lockclient.Client on it must be closed before; a lease that is held by
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

// Path is the name of a resource's node.
func (s *Store) Path(resource fence.Resource) string {
	name := strings.ReplaceAll(resource.Encode(), "/", "%2F")
	if name == "." || name == ".." { // mean something else in a path
		name = strings.ReplaceAll(name, ".", "%2E")
	}
	return s.opts.Root + "/" + name
}

// leaseOf is the name of the lease node of a resource's node.
func leaseOf(path string) string { return path + "/lease" }

// Acquire implements lockclient.Store. It takes two requests, of which one
// writes.
func (s *Store) Acquire(ctx context.Context, resource fence.Resource, holder string, ttl time.Duration) (lockclient.Attempt, error) {
	attempt, err := call(ctx, s, func() (lockclient.Attempt, error) { return s.acquire(ctx, s.Path(resource), holder, ttl) })
	if err != nil {
		return lockclient.Attempt{}, s.fail(ctx, "acquiring the lease of", resource, err)
	}
	return attempt, nil
}

// Renew implements lockclient.Store. A lease that another store acquired can't
// be renewed, which is an error.
func (s *Store) Renew(ctx context.Context, resource fence.Resource, holder string, ttl time.Duration) (bool, error) {
	held, err := call(ctx, s, func() (bool, error) { return s.renew(ctx, s.Path(resource), holder, ttl) })
	if err != nil {
		return false, s.fail(ctx, "renewing the lease of", resource, err)
	}
	return held, nil
}

// Release implements lockclient.Store. If it fails, the store goes on trying.
func (s *Store) Release(ctx context.Context, resource fence.Resource, holder string) (bool, error) {
	held, err := call(ctx, s, func() (bool, error) { return s.release(ctx, s.Path(resource), holder) })
	if err != nil {
		return false, s.fail(ctx, "releasing the lease of", resource, err)
	}
	return held, nil
}

// Raise implements lockclient.Store.
func (s *Store) Raise(ctx context.Context, resource fence.Resource, token fence.Token) error {
	_, err := call(ctx, s, func() (struct{}, error) { return struct{}{}, s.raise(ctx, s.Path(resource), token) })
	if err != nil {
		return s.fail(ctx, "raising the token counter of", resource, err)
	}
	return nil
}

var errClosed = errors.New("the store is closed")

// call runs what makes requests, in a goroutine of its own since the driver knows
// no contexts. It returns when ctx ends; what was asked goes on then until it is
// done or its request has failed.
func call[T any](ctx context.Context, s *Store, do func() (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if !s.begin() {
		return none, errClosed
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer s.running.Done()
		value, err := do()
		done <- outcome{value, err}
	}()
	select {
	case out := <-done:
		return out.value, out.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// begin counts one more goroutine that Close waits for, unless it is closed.
func (s *Store) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// fail says what failed where. A context that ended is in the chain, and why
// there was no connection, if there was none.
func (s *Store) fail(ctx context.Context, doing string, resource fence.Resource, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		if !errors.Is(err, ctxErr) {
			err = fmt.Errorf("%w (%w)", ctxErr, err)
		} else if failure := s.connectFailure(); failure != nil {
			err = fmt.Errorf("%w (%w)", err, failure)
		}
	}
	return fmt.Errorf("ZooKeeper at %s: %s %q: %w", strings.Join(s.opts.Servers, ","), doing, resource, err)
}
