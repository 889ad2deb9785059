package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// readStartup reads packets until the StartupMessage or the CancelRequest, and answers
// encryption requests. Later bytes stay in the buffer. The returned client replaces raw:
// it may use TLS.
func (s *Server) readStartup(ctx context.Context, raw net.Conn, in *buffer) (*client, *wire.Startup, error) {
	c := &client{Conn: raw}
	requested := map[wire.StartupKind]bool{}
	for {
		packet, err := s.readPacket(c, in, !c.encrypted)
		if errors.Is(err, errHandshake) {
			if c, err = s.secure(c.Conn, in, true); err != nil {
				return nil, nil, err
			}
			requested[wire.StartupSSL], requested[wire.StartupGSS] = true, true
			continue
		}
		if err != nil {
			return nil, nil, reject(ctx, c, err)
		}
		startup, err := wire.ParseStartup(packet)
		if err != nil {
			return nil, nil, reject(ctx, c, err)
		}
		switch startup.Kind {
		case wire.StartupSession:
			return c, startup, s.checkStartup(c, startup)
		case wire.StartupCancel:
			return c, startup, nil
		}
		if requested[startup.Kind] {
			return nil, nil, reject(ctx, c, errors.New("encryption was asked for twice"))
		}
		requested[startup.Kind] = true
		if len(in.bytes()) > 0 {
			// A man in the middle may have injected these bytes; they must not count as
			// the client's (CVE-2021-3935).
			return nil, nil, reject(ctx, c, errors.New("received unencrypted data after an encryption request"))
		}
		if c, err = s.answerEncryption(c, in, startup.Kind); err != nil {
			return nil, nil, err
		}
		if c.encrypted {
			requested[wire.StartupSSL], requested[wire.StartupGSS] = true, true
		}
	}
}

// answerEncryption answers an SSLRequest or a GSSENCRequest.
func (s *Server) answerEncryption(c *client, in *buffer, kind wire.StartupKind) (*client, error) {
	if kind != wire.StartupSSL || s.tls == nil || c.LocalAddr().Network() == "unix" {
		_, err := c.Write([]byte{'N'})
		return c, err
	}
	if _, err := c.Write([]byte{'S'}); err != nil {
		return nil, err
	}
	return s.secure(c.Conn, in, false)
}

// secure runs the TLS handshake. Its first bytes may be in the buffer already.
func (s *Server) secure(raw net.Conn, in *buffer, direct bool) (*client, error) {
	read := append([]byte(nil), in.bytes()...)
	in.used(len(read))
	return s.tls.handshake(raw, read, direct)
}

// checkStartup refuses a session without a user name, TLS or certificate that the
// settings demand.
func (s *Server) checkStartup(c *client, startup *wire.Startup) error {
	user := startup.User()
	switch {
	case user == "":
		refuse(c, wire.Error{Code: "28000", Message: "no PostgreSQL user name specified in startup packet"})
		return errors.New("no user name in startup packet")
	case s.tls == nil || c.LocalAddr().Network() == "unix":
	case s.tls.Mode == TLSRequire && !c.encrypted:
		refuse(c, wire.Error{Code: "28000", Message: "connections without TLS are not accepted",
			Hint: "Connect with sslmode=require or stronger."})
		return errors.New("a session without TLS was asked for")
	case s.tls.ClientCert == CertVerifyFull && c.encrypted && c.name != user:
		refuse(c, wire.Error{Code: "28000", Message: fmt.Sprintf("certificate authentication failed for user %q", user)})
		return fmt.Errorf("the client's certificate is for %q, not for user %q", c.name, user)
	}
	return nil
}

// reject sends the client the error of its startup packet, or the limit for which it was
// evicted. A connection that failed or sent nothing, as a health check, gets no answer.
func reject(ctx context.Context, client net.Conn, err error) error {
	if limit := (*limitError)(nil); errors.As(context.Cause(ctx), &limit) {
		refuse(client, limit.response)
		return limit
	}
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, errEmpty) {
		return err
	}
	code := "08P01"
	if version := (*wire.VersionError)(nil); errors.As(err, &version) {
		code = "0A000"
	}
	refuse(client, wire.Error{Code: code, Message: err.Error()})
	return err
}

var (
	errEmpty     = errors.New("the client closed the connection before its startup packet was whole")
	errHandshake = errors.New("the client begins a TLS handshake")
)

// tlsHandshake is the type of the first TLS record. A startup packet never
// begins with it: its length would be over MaxStartup.
const tlsHandshake = 0x16

// readPacket reads one packet. With direct it returns errHandshake if a TLS handshake
// begins without an SSLRequest; its bytes stay in the buffer.
func (s *Server) readPacket(client net.Conn, in *buffer, direct bool) ([]byte, error) {
	for {
		if b := in.bytes(); direct && s.tls != nil && len(b) > 0 && b[0] == tlsHandshake && client.LocalAddr().Network() != "unix" {
			return nil, errHandshake
		}
		size, err := wire.StartupSize(in.bytes())
		if err != nil && bytes.HasPrefix(in.bytes(), []byte{'X', 0, 0, 0}) { // Terminate: it gives up before its login
			return nil, errors.Join(errEmpty, err)
		} else if err != nil {
			return nil, err
		}
		if size > 0 && len(in.bytes()) >= size {
			packet := append([]byte(nil), in.bytes()[:size]...)
			in.used(size)
			return packet, nil
		}
		if _, err := in.read(client); err != nil {
			return nil, errors.Join(errEmpty, err)
		}
	}
}
