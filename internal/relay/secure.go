package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// handshakeType is the first byte of a client that begins with TLS (RFC 8446, 5.1). No command begins
// with it.
const handshakeType = 22

var errNoTLS = errors.New("the client came without TLS")

// secure runs TLS with a client that begins with it.
func (s *session) secure() error {
	if s.relay.opts.TLS == nil {
		return nil
	}
	if s.relay.opts.RequireTLS { // otherwise it may wait as long as Redis lets it
		s.readUntil(time.Now().Add(dialTimeout))
		defer s.readUntil(time.Time{})
	}
	if err := s.in.read(s.client); err != nil {
		return err
	}
	if s.in.bytes()[0] != handshakeType {
		if _, local := s.client.(*net.UnixConn); local || !s.relay.opts.RequireTLS {
			return nil
		}
		s.replies.sendLast(refusal("TLS is required: connect by rediss://"))
		return errNoTLS
	}
	conn := tls.Server(&readConn{s.client, io.MultiReader(bytes.NewReader(s.in.bytes()), s.client)}, s.relay.opts.TLS)
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.client, s.replies.client, s.in = conn, conn, buffer{}
	return nil
}

// readUntil limits the reads of the client's bytes.
func (s *session) readUntil(deadline time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining {
		_ = s.client.SetReadDeadline(deadline)
	}
}

// readConn is a connection from which something was read before.
type readConn struct {
	net.Conn
	io.Reader
}

func (c *readConn) Read(p []byte) (int, error) { return c.Reader.Read(p) }
