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

// session is a connection of the driver, which goes from server to server and
// begins a new ZooKeeper session where the old one has expired.
type session struct {
	conn    *zk.Conn
	opts    *Options
	timeout time.Duration // that was asked for
	gone    chan struct{} // closed when the driver has ended

	login    chan struct{} // who puts an element may log in
	loggedIn bool          // by who has put it

	mu        sync.Mutex
	lasts     time.Duration // what the server has granted; 0 before the first connection
	wire      net.Conn
	failure   error // of the last try to connect
	abandoned bool
	left      []string // places in lines that could not be deleted yet

	// The store's mu guards these.
	used   time.Time // when it was last returned for a request
	places int       // in lines
}

// sessionTimeout is what a session must last so that leases of a ttl do: see the
// package comment. It is rounded up to one of four timeouts for each power of two,
// by less than a quarter, so that many ttls share few sessions.
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

// otherwise is the ttl that a session is made for if none is there and it holds
// no lease.
const otherwise = 8 * time.Second

// any returns some session: the one that was used last, so that others become
// idle.
func (s *Store) any(ctx context.Context) (*session, error) {
	s.mu.Lock()
	var last *session
	for _, x := range s.sessions {
		if last == nil || x.used.After(last.used) {
			last = x
		}
	}
	if last == nil {
		s.mu.Unlock()
		return s.session(ctx, otherwise)
	}
	last.used = time.Now()
	s.mu.Unlock()
	return last, last.authenticate(ctx)
}

// idleTime is how long a session is kept that has no lease and no place in a line,
// and for which no request has asked. One that still waits for its answer then is
// tried again on another session.
const idleTime = 30 * time.Second

// retire takes a session out of use if it has been idle, and reports whether it
// has: each is a connection, of which a server grants 60 to an address by default
// (maxClientCnxns).
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
		zk.WithDialer(x.dial), zk.WithHostProvider(&rotation{}), zk.WithLogger(silence{}), zk.WithLogInfo(false))
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
		s.touch(x)
	}()
	return x, nil
}

// touch tells the server often enough that a session lives, even one that has no
// leases: how long one lasts that it is about to get depends on when the leader last
// heard of the session. One that is idle is closed. One that has had no connection for all of its time has
// expired, and is replaced: a server that was restored from older data than the
// driver has seen would never let the driver in again.
func (s *Store) touch(x *session) {
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
		x.leaveLines()
	}
}

// drop lets the next request begin a new session.
func (s *Store) drop(x *session) {
	s.mu.Lock()
	if s.sessions[x.timeout] == x {
		delete(s.sessions, x.timeout)
	}
	s.mu.Unlock()
	x.close(true)
}

// authenticate presents the credentials once. The driver repeats them on each
// connection.
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

// acl is who may do what with new nodes.
func (x *session) acl() []zk.ACL {
	if x.opts.User == "" {
		return zk.WorldACL(zk.PermAll)
	}
	return zk.AuthACL(zk.PermAll)
}

// suffices reports as an error that leases of a ttl could outlast the session.
// There must have been an answer from the server before.
func (x *session) suffices(ttl time.Duration) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lasts >= ttl+x.opts.Tick {
		return nil
	}
	return fmt.Errorf("a ttl of %v needs sessions of %v, the server grants %v: maxSessionTimeout must be higher or the ttl shorter",
		ttl, ttl+x.opts.Tick, x.lasts)
}

// close ends the session, or leaves it to expire if it is abandoned, and
// returns when the driver has ended.
func (x *session) close(abandon bool) {
	if abandon {
		x.abandon()
	}
	x.conn.Close()
	x.abandon()
	<-x.gone
}

// abandon lets the driver connect no more.
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
	x.wire = &greetedConn{Conn: conn, session: x}
	return x.wire, nil
}

// secure begins TLS on a connection, which it closes if that fails.
func secure(conn net.Conn, address string, config *tls.Config) (net.Conn, error) {
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(address)
	}
	ctx, cancel := context.WithTimeout(context.Background(), greetingPatience)
	defer cancel()
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}

// connectFailure returns why one of the sessions has no connection, nil if none
// has failed.
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

// explain adds why there is no connection to an error that says so.
func (x *session) explain(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failure != nil && isConnection(err) {
		return fmt.Errorf("%w (%w)", err, x.failure)
	}
	return err
}

// isConnection reports whether an error leaves open what became of a request.
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

// greeted notes what a server grants. One that knows the session no more grants
// nothing; then the driver asks for another.
func (x *session) greeted(lasts time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if lasts > 0 {
		x.lasts = lasts
	}
}

// greetedConn reads along in what a server says first: what time it grants to the
// session, which the driver keeps to itself.
type greetedConn struct {
	net.Conn
	session  *session
	greeting []byte // length, protocol version and timeout, of 4 bytes each
}

const greetingBytes = 12

func (c *greetedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if missing := greetingBytes - len(c.greeting); missing > 0 && n > 0 {
		c.greeting = append(c.greeting, p[:min(n, missing)]...)
		if len(c.greeting) == greetingBytes {
			c.session.greeted(time.Duration(binary.BigEndian.Uint32(c.greeting[8:])) * time.Millisecond)
		}
	}
	return n, err
}

// greetingPatience is how long a server may take to greet. The driver would wait
// for nearly seven times the session's timeout before it tries another.
const greetingPatience = 5 * time.Second

func (c *greetedConn) SetReadDeadline(t time.Time) error {
	if limit := time.Now().Add(greetingPatience); len(c.greeting) == 0 && (t.IsZero() || t.After(limit)) {
		t = limit
	}
	return c.Conn.SetReadDeadline(t)
}

// rotation lets the driver try one server after the other. Unlike the driver's
// own it leaves the resolving of names to each dial, and lets a lost connection be
// made again without a pause.
type rotation struct {
	servers []string
	next    int
	tried   int // since the last connection
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

// silence is the driver's log: its errors come back from the calls.
type silence struct{}

func (silence) Printf(string, ...any) {}
