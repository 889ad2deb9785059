// Package secure runs crypto/tls over a socket during the handshake and the login, and
// then over memory, for an event loop that reads and writes the socket itself.
//
// crypto/tls reads from a net.Conn. After a net.Error whose Temporary is true it can read
// on, so the transport returns such an error when memory has no more bytes.
package secure

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"slices"
	"time"
)

// Conn is a TLS connection. Until Detach it is a net.Conn; after that only Open, Seal and
// SealClose may be called, and not concurrently.
type Conn struct {
	*tls.Conn
	t *transport
}

// Server returns the server side of TLS on a client's connection; read are bytes that were
// read from it before. It takes ownership of config.
func Server(raw net.Conn, read []byte, config *tls.Config) *Conn {
	t := &transport{Conn: raw, in: read}
	return &Conn{tls.Server(t, fullRecords(config)), t}
}

// Client returns the client side of TLS on a connection to a server. It takes ownership of
// config.
func Client(raw net.Conn, config *tls.Config) *Conn {
	t := &transport{Conn: raw}
	return &Conn{tls.Client(t, fullRecords(config)), t}
}

// fullRecords turns off the small first records of crypto/tls. They help browsers, which
// can use a part of a response.
func fullRecords(config *tls.Config) *tls.Config {
	config.DynamicRecordSizingDisabled = true
	return config
}

// Socket returns the connection below TLS.
func (c *Conn) Socket() net.Conn { return c.t.Conn }

// handshakeSlots bounds concurrent handshakes to half of the processors, so that a flood
// of logins leaves the rest to sessions. A handshake has no slot while it waits for its
// peer.
var handshakeSlots = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// LimitedHandshake runs the handshake in one of the handshakeSlots.
func (c *Conn) LimitedHandshake(ctx context.Context) error {
	handshakeSlots <- struct{}{}
	c.t.hasSlot = true
	defer func() {
		c.t.hasSlot = false
		<-handshakeSlots
	}()
	return c.HandshakeContext(ctx)
}

// Detach removes the socket, which belongs to the caller from then on.
func (c *Conn) Detach() { c.t.Conn = nil }

// Open decrypts bytes of the peer. It appends the plaintext to plain, and the bytes that
// TLS itself has to send to answer. It keeps an incomplete record, of at most 16 KiB. An
// error ends the stream: io.EOF after the peer's close_notify, otherwise the failure, for
// which answer has an alert.
func (c *Conn) Open(plain, answer, received []byte) (_, _ []byte, err error) {
	c.t.in, c.t.out = received, answer
	for err == nil {
		plain = slices.Grow(plain, maxRecord)
		var n int
		n, err = c.Read(plain[len(plain):cap(plain)])
		plain = plain[:len(plain)+n]
	}
	answer = c.t.out
	c.t.in, c.t.out = nil, nil
	if errors.Is(err, errNoBytes) {
		err = nil
	}
	return plain, answer, err
}

// maxRecord is the most plaintext bytes of a record (RFC 8446, section 5.1).
const maxRecord = 16 << 10

// Seal appends said, encrypted as records, to sealed.
func (c *Conn) Seal(sealed, said []byte) ([]byte, error) {
	return c.seal(sealed, func() error {
		_, err := c.Write(said)
		return err
	})
}

// SealClose appends the close_notify alert to sealed, the first time it is called.
func (c *Conn) SealClose(sealed []byte) ([]byte, error) {
	return c.seal(sealed, c.CloseWrite)
}

func (c *Conn) seal(sealed []byte, write func() error) ([]byte, error) {
	c.t.out = sealed
	err := write()
	sealed, c.t.out = c.t.out, nil
	return sealed, err
}

// transport is the net.Conn below crypto/tls. It reads the bytes in in first, then the
// socket until Detach, and writes to the socket or, after Detach, to out.
type transport struct {
	net.Conn
	in      []byte // received bytes that TLS has not read
	out     []byte // bytes to be sent
	hasSlot bool   // has one of handshakeSlots, except while it reads or writes
}

func (t *transport) Read(b []byte) (int, error) {
	switch {
	case len(t.in) > 0:
		n := copy(b, t.in)
		t.in = t.in[n:]
		return n, nil
	case t.Conn == nil:
		return 0, errNoBytes
	}
	defer t.releaseSlot()()
	return t.Conn.Read(b)
}

// releaseSlot releases the handshake's slot while it waits for the peer. The function that
// it returns takes a slot again.
func (t *transport) releaseSlot() (over func()) {
	if !t.hasSlot {
		return func() {}
	}
	<-handshakeSlots
	return func() { handshakeSlots <- struct{}{} }
}

func (t *transport) Write(b []byte) (int, error) {
	if t.Conn != nil {
		defer t.releaseSlot()() // the peer may not read
		return t.Conn.Write(b)
	}
	t.out = append(t.out, b...)
	return len(b), nil
}

// SetWriteDeadline is called by crypto/tls before it sends close_notify.
func (t *transport) SetWriteDeadline(at time.Time) error {
	if t.Conn != nil {
		return t.Conn.SetWriteDeadline(at)
	}
	return nil
}

// errNoBytes says that TLS has read all bytes in memory.
var errNoBytes net.Error = noBytes{}

type noBytes struct{}

func (noBytes) Error() string   { return "no bytes are there" }
func (noBytes) Timeout() bool   { return true }
func (noBytes) Temporary() bool { return true }
