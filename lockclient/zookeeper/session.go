package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/wirefence/wirefence/internal/address"
)

// session is one ZooKeeper session. The driver moves it from server to server until it
// expires, and must not begin another one in its place.
//
// A session for watches has only one connection: when the driver connects again with
// watches, it reads a field without its lock (v1.0.4). The others have no watches.
type session struct {
	sessionKey
	store *Store
	conn  *zk.Conn
	over  chan struct{} // closed when the session is abandoned
	gone  chan struct{} // closed when the driver has ended

	login    sync.Mutex
	loggedIn bool // guarded by login

	mu    sync.Mutex
	lasts time.Duration // the timeout that the server granted; 0 before the first connection
	wire  net.Conn

	// The store's mu guards these.
	used  time.Time // when a request last used it
	users int       // watches
}

type sessionKey struct {
	timeout time.Duration // as requested
	watches bool
}

// sessionTimeout returns the session timeout that leases of a ttl need: see the package
// comment. It rounds up to one of four timeouts for each power of two, by less than a
// quarter, so that many ttls share few sessions.
func (s *Store) sessionTimeout(ttl time.Duration) time.Duration {
	least := ttl + s.opts.Tick
	step := time.Second
	for least > 8*step {
		step *= 2
	}
	return (least + step - 1).Truncate(step)
}

// defaultTTL is the ttl for which a session is opened if a request needs one and no lease
// does.
const defaultTTL = 8 * time.Second

// session returns the session for leases of a ttl.
func (s *Store) session(ctx context.Context, ttl time.Duration) (*session, error) {
	return s.use(ctx, func() sessionKey { return sessionKey{timeout: s.sessionTimeout(ttl)} })
}

// anySession returns the session that was used last, so that the others become idle.
func (s *Store) anySession(ctx context.Context) (*session, error) {
	return s.use(ctx, func() sessionKey {
		var last *session
		for _, x := range s.sessions {
			if !x.watches && (last == nil || x.used.After(last.used)) {
				last = x
			}
		}
		if last == nil {
			return sessionKey{timeout: s.sessionTimeout(defaultTTL)}
		}
		return last.sessionKey
	})
}

// watcher returns the session for watches.
func (s *Store) watcher(ctx context.Context) (*session, error) {
	return s.use(ctx, func() sessionKey { return sessionKey{s.sessionTimeout(defaultTTL), true} })
}

// use returns the session with a key, and opens it if there is none.
func (s *Store) use(ctx context.Context, key func() sessionKey) (*session, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	k := key()
	x := s.sessions[k]
	if x == nil {
		var err error
		if x, err = s.connect(k); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		s.sessions[k] = x
	}
	x.used = time.Now()
	s.mu.Unlock()
	if err := x.authenticate(ctx); err != nil {
		return nil, err
	}
	return x, ctx.Err()
}

// occupy adds to the number of users for which a session is kept. It reports whether the
// session is still in use.
func (s *Store) occupy(x *session, more int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.users += more
	x.used = time.Now()
	return s.sessions[x.sessionKey] == x
}

// idleTime is how long a session is kept without a lease, a watch, or a request.
// A request that still waits for its answer then is repeated on another session.
const idleTime = 30 * time.Second

// retire removes a session that has been idle, and reports whether it did: each is a
// connection, and a server grants 60 to an address by default (maxClientCnxns).
func (s *Store) retire(x *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[x.sessionKey] != x || x.users > 0 || time.Since(x.used) < idleTime {
		return false
	}
	for _, g := range s.grants {
		if g.session == x {
			return false
		}
	}
	delete(s.sessions, x.sessionKey)
	return true
}

// connect begins to connect, and returns at once. The caller holds mu.
func (s *Store) connect(key sessionKey) (x *session, err error) {
	x = &session{sessionKey: key, store: s, over: make(chan struct{}), gone: make(chan struct{})}
	conn, events, err := zk.Connect(s.opts.Servers, key.timeout, zk.WithDialer(x.dial), zk.WithHostProvider(&rotation{}),
		zk.WithEventCallback(x.follow), zk.WithLogger(discardLog{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	x.conn = conn
	go func() {
		defer close(x.gone)
		for range events { // it is closed when the driver has ended
		}
	}()
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		s.keepAlive(x)
	}()
	return x, nil
}

// follow hears from the driver what becomes of the connection, before it connects again.
func (x *session) follow(event zk.Event) {
	if event.State == zk.StateExpired || x.watches && event.State == zk.StateDisconnected {
		x.abandon()
	}
}

// keepAlive sends requests on a session often enough, even without leases: how long a new
// lease lasts depends on when the leader last heard of its session. It closes an idle
// session, and one that is over. A session that has had no connection for its timeout has
// expired: a server that was restored from older data than the driver has seen would never
// accept the driver again.
func (s *Store) keepAlive(x *session) {
	ticker := time.NewTicker(s.opts.Tick / 2)
	defer ticker.Stop()
	connected := time.Now()
	for {
		select {
		case <-ticker.C:
		case <-x.over:
			s.drop(x)
			return
		case <-x.gone:
			return
		}
		switch {
		case x.conn.State() == zk.StateHasSession:
			connected = time.Now()
		case time.Since(connected) > x.timeout:
			s.drop(x)
			return
		}
		if s.retire(x) {
			x.close(false)
			return
		}
		_, _, _ = x.conn.Exists("/") // the driver deals with failures
	}
}

// drop removes a session, so that the next request begins a new one.
func (s *Store) drop(x *session) {
	s.mu.Lock()
	if s.sessions[x.sessionKey] == x {
		delete(s.sessions, x.sessionKey)
	}
	s.mu.Unlock()
	x.close(true)
}

// authenticate sends the credentials once. The driver repeats them on each connection of the session.
func (x *session) authenticate(ctx context.Context) error {
	opts := &x.store.opts
	if opts.User == "" {
		return nil
	}
	x.login.Lock()
	defer x.login.Unlock()
	if x.loggedIn {
		return nil
	}
	user, password, err := opts.credentials(ctx)
	if err == nil {
		err = x.conn.AddAuth("digest", []byte(user+":"+password))
	}
	x.loggedIn = err == nil
	return err
}

func (o *Options) credentials(ctx context.Context) (user, password string, err error) {
	if o.Reload == nil {
		return o.User, o.Password, nil
	}
	text, err := o.Reload(ctx)
	if err != nil {
		return "", "", fmt.Errorf("read the connection string again: %w", err)
	}
	u, err := address.Parse(text, "zookeeper", "2181", "tick")
	if err == nil && (u.User == "" || u.Password == "") {
		err = errors.New("the connection string that was read again lacks a user or a password")
	}
	return u.User, u.Password, err
}

// acl returns the access rights of new nodes.
func (x *session) acl() []zk.ACL {
	if x.store.opts.User == "" {
		return zk.WorldACL(zk.PermAll)
	}
	return zk.AuthACL(zk.PermAll)
}

// checkTimeout returns an error if leases of a ttl could outlast the session. The server must
// have answered before.
func (x *session) checkTimeout(ttl time.Duration) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	least := ttl + x.store.opts.Tick
	if x.lasts >= least {
		return nil
	}
	return fmt.Errorf("a ttl of %v needs sessions of %v, but the server grants %v: raise its maxSessionTimeout, or choose a shorter ttl",
		ttl, least, x.lasts)
}

// close ends the session, or lets it expire if abandon is set, and returns when the
// driver has ended.
func (x *session) close(abandon bool) {
	if abandon {
		x.abandon()
	}
	x.conn.Close()
	x.abandon()
	<-x.gone
}

// abandon keeps the driver from connecting again.
func (x *session) abandon() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.isOver() {
		close(x.over)
	}
	if x.wire != nil {
		_ = x.wire.Close()
	}
}

func (x *session) isOver() bool {
	select {
	case <-x.over:
		return true
	default:
		return false
	}
}
