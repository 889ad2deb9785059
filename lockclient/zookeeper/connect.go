package zookeeper

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"github.com/go-zookeeper/zk"
)

// greetingTimeout bounds TLS, and then the wait for a server's first message. The driver
// would wait nearly seven times the session timeout before it tries another server.
const greetingTimeout = 5 * time.Second

// dial connects for the driver.
func (x *session) dial(network, address string, timeout time.Duration) (_ net.Conn, err error) {
	defer func() { x.store.recordFailure(err) }()
	var conn net.Conn
	if config := x.store.opts.TLS; config != nil {
		conn, err = tls.DialWithDialer(&net.Dialer{Timeout: greetingTimeout}, network, address, config)
	} else {
		conn, err = net.DialTimeout(network, address, timeout)
	}
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.isOver() {
		_ = conn.Close()
		return nil, errClosed
	}
	x.wire = &greetedConn{Conn: conn, session: x, late: time.AfterFunc(greetingTimeout, func() { _ = conn.Close() })}
	return x.wire, nil
}

// recordFailure records how the last try to connect ended.
func (s *Store) recordFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(err, errClosed) {
		s.failure = err
	}
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

// greetedConn reads the granted timeout from a server's first message; the driver does not
// report it.
type greetedConn struct {
	net.Conn
	session  *session
	greeting []byte      // length, protocol version and timeout, 4 bytes each
	late     *time.Timer // closes the connection
}

const greetingBytes = 12

func (c *greetedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if missing := greetingBytes - len(c.greeting); missing > 0 && n > 0 {
		c.greeting = append(c.greeting, p[:min(n, missing)]...)
		if len(c.greeting) == greetingBytes {
			c.late.Stop()
			c.session.recordTimeout(time.Duration(binary.BigEndian.Uint32(c.greeting[8:])) * time.Millisecond)
		}
	}
	return n, err
}

func (c *greetedConn) Close() error {
	c.late.Stop()
	return c.Conn.Close()
}

// recordTimeout records the timeout that a server grants. A server that no longer knows the
// session grants 0.
func (x *session) recordTimeout(lasts time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if lasts > 0 {
		x.lasts = lasts
	}
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
