// Package secure speaks TLS at first over a socket, for the handshake and the login,
// and then over memory, for an event loop that reads and writes the socket itself.
//
// What encrypts is crypto/tls. It reads from a net.Conn, and takes an error that is a
// net.Error whose Temporary is true for no reason to give a connection up: that error
// it gets here when it has taken all bytes that there are.
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

// Conn is a TLS connection. Until Detach it is used as any other net.Conn, and after it
// by Open, Seal and SealClose alone, one at a time.
type Conn struct {
	*tls.Conn
	t *transport
}

// Server is a client's connection on which TLS is to begin, of which some bytes were
// read already. The configuration is the connection's from then on.
func Server(raw net.Conn, read []byte, config *tls.Config) *Conn {
	t := &transport{Conn: raw, in: read}
	return &Conn{tls.Server(t, fullRecords(config)), t}
}

// Client is a connection to a server at which TLS is to begin. The configuration is the
// connection's from then on.
func Client(raw net.Conn, config *tls.Config) *Conn {
	t := &transport{Conn: raw}
	return &Conn{tls.Client(t, fullRecords(config)), t}
}

// fullRecords has records hold as much as they can. Small ones at first are for browsers,
// that have use for a part of what they wait for.
func fullRecords(config *tls.Config) *tls.Config {
	config.DynamicRecordSizingDisabled = true
	return config
}

// Socket is the connection below.
func (c *Conn) Socket() net.Conn { return c.t.Conn }

// computing bounds the processors that handshakes take at once, to half of those that
// there are, so that sessions go on in a flood of logins. One has no place while it waits
// for its peer.
var handshakeSlots = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// Shake makes the handshake.
func (c *Conn) LimitedHandshake(ctx context.Context) error {
	handshakeSlots <- struct{}{}
	c.t.hasSlot = true
	defer func() {
		c.t.hasSlot = false
		<-handshakeSlots
	}()
	return c.HandshakeContext(ctx)
}

// Detach takes the TLS connection off its socket, which the caller carries on with.
func (c *Conn) Detach() { c.t.Conn = nil }

// Open takes bytes that the peer has sent, and appends what they say to plain, and what
// TLS itself has to answer to answer. A record that is not whole is kept, of at most
// 16 KiB. The error says that nothing more is to come: io.EOF if the peer has said so,
// else what is wrong; the peer is to be told by answer.
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

// maxRecord is how many bytes a record holds at most (RFC 8446, section 5.1).
const maxRecord = 16 << 10

// Seal appends the records to sealed in which said is sent.
func (c *Conn) Seal(sealed, said []byte) ([]byte, error) {
	return c.seal(sealed, func() error {
		_, err := c.Write(said)
		return err
	})
}

// SealClose appends the alert to sealed that says that nothing more is to come; once.
func (c *Conn) SealClose(sealed []byte) ([]byte, error) {
	return c.seal(sealed, c.CloseWrite)
}

func (c *Conn) seal(sealed []byte, write func() error) ([]byte, error) {
	c.t.out = sealed
	err := write()
	sealed, c.t.out = c.t.out, nil
	return sealed, err
}

// transport is what TLS reads from and writes to: first what was read ahead, then the
// socket while there is one, then memory.
type transport struct {
	net.Conn
	in      []byte // what TLS has not taken
	out     []byte // what is to be sent
	hasSlot bool   // has a place in computing, but while it reads or writes
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

// waits gives the place in computing back while the peer is waited for, until the function
// that it returns is called.
func (t *transport) releaseSlot() (over func()) {
	if !t.hasSlot {
		return func() {}
	}
	<-handshakeSlots
	return func() { handshakeSlots <- struct{}{} }
}

func (t *transport) Write(b []byte) (int, error) {
	if t.Conn != nil {
		defer t.releaseSlot()() // a peer may take nothing
		return t.Conn.Write(b)
	}
	t.out = append(t.out, b...)
	return len(b), nil
}

// SetWriteDeadline is called by TLS itself before it says that nothing more is to come.
func (t *transport) SetWriteDeadline(at time.Time) error {
	if t.Conn != nil {
		return t.Conn.SetWriteDeadline(at)
	}
	return nil
}

// errNoBytes says that all was read that is there.
var errNoBytes net.Error = noBytes{}

type noBytes struct{}

func (noBytes) Error() string   { return "no bytes are there" }
func (noBytes) Timeout() bool   { return true }
func (noBytes) Temporary() bool { return true }
