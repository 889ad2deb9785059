package zookeeper

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// session is a connection of the driver, which moves from server to server and begins a
// new ZooKeeper session when the old one has expired.
type session struct {
	conn    *zk.Conn
	opts    *Options
	timeout time.Duration // as requested
	gone    chan struct{} // closed when the driver has ended

	login    chan struct{} // a lock of loggedIn: the owner has put an element
	loggedIn bool

	mu        sync.Mutex
	lasts     time.Duration // the timeout that the server granted; 0 before the first connection
	wire      net.Conn
	failure   error // of the last try to connect
	abandoned bool
	left      []string // places in queues whose deletion failed

	// The store's mu guards these.
	used   time.Time // when a request last used it
	places int       // in queues
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

// session returns the session for leases of a ttl.
func (s *Store) session(ctx context.Context, ttl time.Duration) (*session, error) {
	timeout := s.sessionTimeout(ttl)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	x := s.sessions[timeout]
	if x == nil {
		var err error
		if x, err = s.connect(timeout); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		s.sessions[timeout] = x
	}
	x.used = time.Now()
	s.mu.Unlock()
	return x, x.authenticate(ctx)
}

// defaultTTL is the ttl for which a session is opened if a request needs one and no lease
// does.
const defaultTTL = 8 * time.Second

// anySession returns the session that was used last, so that the others become idle.
func (s *Store) anySession(ctx context.Context) (*session, error) {
	s.mu.Lock()
	var last *session
	for _, x := range s.sessions {
		if last == nil || x.used.After(last.used) {
			last = x
		}
	}
	if last == nil {
		s.mu.Unlock()
		return s.session(ctx, defaultTTL)
	}
	last.used = time.Now()
	s.mu.Unlock()
	return last, last.authenticate(ctx)
}

// idleTime is how long a session is kept without a lease, a place in a queue, or a
// request. A request that still waits for its answer then is repeated on another session.
const idleTime = 30 * time.Second

// retire removes a session that has been idle, and reports whether it did: each is a
// connection, and a server grants 60 to an address by default (maxClientCnxns).
func (s *Store) retire(x *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[x.timeout] != x || x.places > 0 || time.Since(x.used) < idleTime {
		return false
	}
	for _, g := range s.grants {
		if g.session == x {
			return false
		}
	}
	delete(s.sessions, x.timeout)
	return true
}

// connect begins to connect, and returns at once. The caller holds mu.
func (s *Store) connect(timeout time.Duration) (*session, error) {
	x := &session{opts: &s.opts, timeout: timeout, gone: make(chan struct{}), login: make(chan struct{}, 1)}
	conn, events, err := zk.Connect(s.opts.Servers, timeout,
		zk.WithDialer(x.dial), zk.WithHostProvider(&rotation{}), zk.WithLogger(discardLog{}), zk.WithLogInfo(false))
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

// keepAlive sends requests on a session often enough, even without leases: how long a new
// lease lasts depends on when the leader last heard of its session. It closes an idle
// session. A session that has had no connection for its timeout has expired, and is
// replaced: a server that was restored from older data than the driver has seen would
// never accept the driver again.
func (s *Store) keepAlive(x *session) {
	ticker := time.NewTicker(s.opts.Tick / 2)
	defer ticker.Stop()
	connected := time.Now()
	for {
		select {
		case <-ticker.C:
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
		x.retryDequeue()
	}
}

// drop removes a session, so that the next request begins a new one.
func (s *Store) drop(x *session) {
	s.mu.Lock()
	if s.sessions[x.timeout] == x {
		delete(s.sessions, x.timeout)
	}
	s.mu.Unlock()
	x.close(true)
}

// authenticate sends the credentials once. The driver repeats them on each connection.
func (x *session) authenticate(ctx context.Context) error {
	if x.opts.User == "" {
		return nil
	}
	select {
	case x.login <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-x.login }()
	if x.loggedIn {
		return nil
	}
	if err := x.conn.AddAuth("digest", []byte(x.opts.User+":"+x.opts.Password)); err != nil {
		return x.explain(err)
	}
	x.loggedIn = true
	return nil
}

// acl returns the access rights of new nodes.
func (x *session) acl() []zk.ACL {
	if x.opts.User == "" {
		return zk.WorldACL(zk.PermAll)
	}
	return zk.AuthACL(zk.PermAll)
}

// checkTimeout returns an error if leases of a ttl could outlast the session. The server must
// have answered before.
func (x *session) checkTimeout(ttl time.Duration) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lasts >= ttl+x.opts.Tick {
		return nil
	}
	return fmt.Errorf("a ttl of %v needs sessions of %v, but the server grants %v: raise its maxSessionTimeout, or choose a shorter ttl",
		ttl, ttl+x.opts.Tick, x.lasts)
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
	x.abandoned = true
	if x.wire != nil {
		_ = x.wire.Close()
	}
}

// dial connects for the driver.
func (x *session) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, timeout)
	if err == nil && x.opts.TLS != nil {
		conn, err = secure(conn, address, x.opts.TLS)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err == nil && x.abandoned {
		_ = conn.Close()
		err = errClosed
	}
	if x.failure = err; err != nil {
		return nil, err
	}
	x.wire = &timeoutReader{Conn: conn, session: x}
	return x.wire, nil
}

// secure starts TLS on a connection, and closes the connection if that fails.
func secure(conn net.Conn, address string, config *tls.Config) (net.Conn, error) {
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(address)
	}
	ctx, cancel := context.WithTimeout(context.Background(), greetingTimeout)
	defer cancel()
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}

// connectFailure returns why one of the sessions has no connection, nil if all have one.
func (s *Store) connectFailure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		x.mu.Lock()
		failure := x.failure
		x.mu.Unlock()
		if failure != nil {
			return failure
		}
	}
	return nil
}

// explain adds to a connection error why the last try to connect failed.
func (x *session) explain(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failure != nil && isConnection(err) {
		return fmt.Errorf("%w (%w)", err, x.failure)
	}
	return err
}

// isConnection reports whether an error leaves the outcome of a request unknown.
func isConnection(err error) bool {
	for _, lost := range []error{
		zk.ErrConnectionClosed, zk.ErrSessionExpired, zk.ErrSessionMoved, zk.ErrNoServer, zk.ErrClosing, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, lost) {
			return true
		}
	}
	network := net.Error(nil)
	return errors.As(err, &network)
}

// recordTimeout records the timeout that a server grants. A server that no longer knows the
// session grants 0; then the driver requests a new session.
func (x *session) recordTimeout(lasts time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if lasts > 0 {
		x.lasts = lasts
	}
}

// timeoutReader reads the granted timeout from a server's first message; the driver does
// not report it.
type timeoutReader struct {
	net.Conn
	session  *session
	greeting []byte // length, protocol version and timeout, 4 bytes each
}

const greetingBytes = 12

func (c *timeoutReader) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if missing := greetingBytes - len(c.greeting); missing > 0 && n > 0 {
		c.greeting = append(c.greeting, p[:min(n, missing)]...)
		if len(c.greeting) == greetingBytes {
			c.session.recordTimeout(time.Duration(binary.BigEndian.Uint32(c.greeting[8:])) * time.Millisecond)
		}
	}
	return n, err
}

// greetingTimeout bounds the wait for a server's first message. The driver would wait
// nearly seven times the session timeout before it tries another server.
const greetingTimeout = 5 * time.Second

func (c *timeoutReader) SetReadDeadline(t time.Time) error {
	if limit := time.Now().Add(greetingTimeout); len(c.greeting) == 0 && (t.IsZero() || t.After(limit)) {
		t = limit
	}
	return c.Conn.SetReadDeadline(t)
}

// rotation makes the driver try one server after the other. Unlike the driver's own, it
// resolves names at each dial, and replaces a lost connection without a pause.
type rotation struct {
	servers []string
	next    int
	tried   int // servers tried since the last connection
}

func (r *rotation) Init(servers []string) error {
	r.servers = servers
	return nil
}

func (r *rotation) Len() int { return len(r.servers) }

func (r *rotation) Next() (server string, pauseFirst bool) {
	pauseFirst = r.tried > 0 && r.tried%len(r.servers) == 0
	server = r.servers[r.next%len(r.servers)]
	r.next++
	r.tried++
	return server, pauseFirst
}

func (r *rotation) Connected() { r.tried = 0 }

// discardLog discards the driver's log: the calls return its errors.
type discardLog struct{}

func (discardLog) Printf(string, ...any) {}
