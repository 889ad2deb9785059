package stack

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Dial connects to host:port or to the path of a socket, and sends nothing, but for TLS
// where connections are encrypted.
func Dial(t testing.TB, addr string) *Client {
	t.Helper()
	conn, err := connect(addr)
	if err != nil {
		t.Fatal(err)
	}
	return NewClient(t, conn)
}

// Raw is a connection without TLS that nobody reads from, for as long as Patience.
func Raw(t testing.TB, addr string) net.Conn {
	t.Helper()
	conn, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(Patience))
	return conn
}

// connect connects, by TLS where connections are encrypted.
func connect(addr string) (net.Conn, error) {
	conn, err := dial(addr)
	if err != nil || !secures(addr) {
		return conn, err
	}
	c, err := issue()
	if err != nil {
		return nil, err
	}
	return shake(conn, c.config)
}

// DialTLS connects, asks for TLS and shakes hands.
func DialTLS(t testing.TB, addr string, cfg *tls.Config) *Client {
	t.Helper()
	conn, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	encrypted, err := shake(conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return NewClient(t, encrypted)
}

// shake asks for TLS and shakes hands.
func shake(conn net.Conn, cfg *tls.Config) (*tls.Conn, error) {
	_ = conn.SetDeadline(time.Now().Add(Patience))
	var answer [1]byte
	request, _ := (&pgproto3.SSLRequest{}).Encode(nil)
	_, err := conn.Write(request)
	if err == nil {
		_, err = io.ReadFull(conn, answer[:])
	}
	if err != nil || answer[0] != 'S' {
		return nil, fmt.Errorf("%s answers an SSLRequest by %q, %w", conn.RemoteAddr(), answer, err)
	}
	encrypted := tls.Client(conn, cfg)
	if err := encrypted.Handshake(); err != nil {
		return nil, fmt.Errorf("%s: %w", conn.RemoteAddr(), err)
	}
	_ = conn.SetDeadline(time.Time{})
	return encrypted, nil
}

func dial(addr string) (net.Conn, error) {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	return net.DialTimeout(network, addr, Patience)
}

// NewClient reads from a connection that is there.
func NewClient(t testing.TB, conn net.Conn) *Client {
	c := &Client{T: t, Conn: conn, Patience: Patience, news: make(chan struct{}, 1)}
	t.Cleanup(func() { _ = conn.Close() })
	go c.read()
	return c
}

// Login opens a session of the superuser. Parameters of the startup packet, by name
// and value, may name another user.
func Login(t testing.TB, addr, database string, params ...string) *Client {
	t.Helper()
	c, err := TryLogin(t, addr, database, params...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TryLogin is Login that returns its error.
func TryLogin(t testing.TB, addr, database string, params ...string) (*Client, error) {
	t.Helper()
	conn, err := connect(addr)
	if err != nil {
		return nil, err
	}
	c := NewClient(t, conn)
	return c, c.Login(database, params...)
}

// Login sends a startup packet and reads up to the first ReadyForQuery.
func (c *Client) Login(database string, params ...string) error {
	c.T.Helper()
	c.Write(Startup(pgproto3.ProtocolVersion30, database, params...))
	_, err := c.collect(1)
	return err
}

// Startup is a startup packet, of the superuser if the parameters name no user.
func Startup(version uint32, database string, params ...string) []byte {
	packet := binary.BigEndian.AppendUint32(make([]byte, 4), version)
	texts := append([]string{"database", database}, params...)
	if !named(params, "user") {
		texts = append([]string{"user", "postgres"}, texts...)
	}
	for _, text := range texts {
		packet = append(append(packet, text...), 0)
	}
	packet = append(packet, 0)
	binary.BigEndian.PutUint32(packet, uint32(len(packet)))
	return packet
}

func named(params []string, name string) bool {
	for pair := range slices.Chunk(params, 2) {
		if pair[0] == name {
			return true
		}
	}
	return false
}

// Key returns the process id and the cancel key of the session, or 0 and nil.
func (c *Client) Key() (pid uint32, secret []byte) {
	for _, m := range c.All() {
		if m.Type == 'K' {
			return binary.BigEndian.Uint32(m.Body), m.Body[4:]
		}
	}
	return 0, nil
}

// Cancel sends a CancelRequest for this session.
func (c *Client) Cancel() {
	c.T.Helper()
	pid, key := c.Key()
	CancelRequest(c.T, c.Conn.RemoteAddr().String(), pid, key)
}

// CancelRequest sends a CancelRequest and waits until the other side has closed the
// connection: then it was handled.
func CancelRequest(t testing.TB, addr string, pid uint32, key []byte) {
	t.Helper()
	packet := binary.BigEndian.AppendUint32(nil, uint32(12+len(key)))
	packet = binary.BigEndian.AppendUint32(packet, 80877102)
	packet = append(binary.BigEndian.AppendUint32(packet, pid), key...)
	conn, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(Patience))
	if _, err := conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || strings.Contains(err.Error(), "timeout") {
		t.Fatalf("a CancelRequest was answered by %d bytes, %v", n, err)
	}
}
