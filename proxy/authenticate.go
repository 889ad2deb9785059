package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/proxy/internal/scram"
	"github.com/wirefence/wirefence/proxy/internal/users"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// authenticate runs SCRAM with the client, and sets the credentials for the login
// upstream. On an error it has sent the client an ErrorResponse.
func (c *connector) authenticate(ctx context.Context) error {
	user := c.startup.User()
	entry, err := c.server.users.Lookup(ctx, user)
	unusable := (*users.UnusableError)(nil)
	switch {
	case err == nil:
	case errors.Is(err, users.ErrUnknown):
		entry = c.server.users.Mock(user)
	case errors.As(err, &unusable):
		c.log.Warn("a user can't log in", "reason", unusable.Why)
		entry = c.server.users.Mock(user)
	default:
		c.server.logLimits.failedLookups.On(c.log).Error("cannot look up a user", "error", err)
		return c.endLogin(wire.Error{Code: "08006", Message: "the proxy could not look up the user's password", Hint: "See the proxy's log for the cause."}, err)
	}
	exchange := scram.NewServer(entry.Secret, err != nil, c.client.binding)
	key, err := c.runServerSCRAM(ctx, exchange)
	if err != nil {
		return err
	}
	proved := entry.Credentials(key)
	c.credentials = &proved
	return nil
}

// runServerSCRAM authenticates the client by SCRAM (documentation, "SASL
// Authentication").
func (c *connector) runServerSCRAM(ctx context.Context, s *scram.Server) (scram.Key, error) {
	if _, err := c.client.Write(wire.Encode(&pgproto3.AuthenticationSASL{AuthMechanisms: s.Mechanisms()})); err != nil {
		return scram.Key{}, &endedLoginError{cause: err}
	}
	msg, err := c.readPassword(ctx)
	if err != nil {
		return scram.Key{}, err
	}
	mechanism, data, ok := wire.SASLInitial(msg)
	if !ok {
		return scram.Key{}, c.endSCRAM(scram.ErrMalformed)
	}
	first, err := s.First(mechanism, data)
	if err != nil {
		return scram.Key{}, c.endSCRAM(err)
	}
	if _, err := c.client.Write(wire.Encode(&pgproto3.AuthenticationSASLContinue{Data: []byte(first)})); err != nil {
		return scram.Key{}, &endedLoginError{cause: err}
	}
	if msg, err = c.readPassword(ctx); err != nil {
		return scram.Key{}, err
	}
	final, key, err := s.Final(string(msg[wire.HeaderSize:]))
	if err != nil {
		return scram.Key{}, c.endSCRAM(err)
	}
	_, err = c.client.Write(wire.Encode(&pgproto3.AuthenticationSASLFinal{Data: []byte(final)}))
	if err != nil {
		return scram.Key{}, &endedLoginError{cause: err}
	}
	return key, nil
}

// maxSASLResponse bounds a client's Password message in bytes, as PostgreSQL's
// PG_MAX_SASL_MESSAGE_LENGTH does.
const maxSASLResponse = 1024

// readPassword reads the client's next message, which must be a Password.
func (c *connector) readPassword(ctx context.Context) ([]byte, error) {
	for {
		typ, size, ok := wire.Header(c.fromClient.bytes())
		if ok && (typ != wire.Password || size == 0 || size > maxSASLResponse) {
			return nil, c.endLogin(wire.Error{Code: "08P01", Message: fmt.Sprintf("expected SASL response, got message type %d", typ)},
				errors.New("the client sent another message than a SASL response, or one too long"))
		}
		if ok && size <= len(c.fromClient.bytes()) {
			msg := append([]byte(nil), c.fromClient.bytes()[:size]...)
			c.fromClient.used(size)
			return msg, nil
		}
		// psql disconnects here to ask its user for a password.
		c.server.limits.setAwaitsClient(c.pending, true)
		_, err := c.fromClient.read(c.client)
		c.server.limits.setAwaitsClient(c.pending, false)
		if err != nil {
			if why := loginEndError(ctx); why != nil {
				return nil, c.endLogin(*why, context.Cause(ctx))
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, c.endLogin(loginTimeoutError, err)
			}
			return nil, &endedLoginError{cause: err}
		}
	}
}

// endSCRAM sends the client the ErrorResponse for a failed SCRAM exchange.
func (c *connector) endSCRAM(err error) error {
	switch {
	case errors.Is(err, scram.ErrWrongPassword):
		return c.endLogin(wire.Error{Code: "28P01", Message: fmt.Sprintf("password authentication failed for user %q", c.startup.User())}, err)
	case errors.Is(err, scram.ErrDowngrade), errors.Is(err, scram.ErrBinding), errors.Is(err, scram.ErrUnsupportedBinding):
		return c.endLogin(wire.Error{Code: "28000", Message: err.Error()}, err)
	}
	return c.endLogin(wire.Error{Code: "08P01", Message: err.Error()}, err)
}

// endLogin sends the client a FATAL. The error that it returns stops the search for a
// server.
func (c *connector) endLogin(sent wire.Error, err error) error {
	refuse(c.client, sent)
	return &endedLoginError{sent: &sent, cause: err}
}

// logInUpstream logs in to a server with the client's credentials. The server's
// messages from AuthenticationOk on, or its ErrorResponse, stay in the buffer for the
// client.
func (c *connector) logInUpstream(cand *candidate) error {
	msg := firstMessage(cand.from.bytes())
	switch wire.AuthKind(msg) {
	case wire.AuthOk:
		return nil
	case wire.AuthSASL:
	default:
		return c.endLogin(wire.Error{Code: "28000",
			Message: "the upstream server demands an authentication method that the proxy does not support",
			Detail:  fmt.Sprintf("The server sent an Authentication message with code %d.", wire.AuthKind(msg)),
			Hint:    "With WIREFENCE_AUTH_FILE or WIREFENCE_AUTH_QUERY the server's pg_hba.conf must say scram-sha-256 for the proxy's connections."},
			errors.New("the upstream server demands another authentication method than SCRAM"))
	}
	login, ok := scram.NewClient(*c.credentials, wire.Mechanisms(msg), cand.link.Binding)
	if !ok {
		return c.endLogin(wire.Error{Code: "28000", Message: "the upstream server offers no SCRAM-SHA-256"},
			errors.New("the upstream server offers no SASL mechanism that the proxy supports"))
	}
	cand.from.used(len(msg))
	err := c.runClientSCRAM(cand, login)
	if errors.Is(err, scram.ErrOtherSecret) {
		return c.endLogin(wire.Error{Code: "28P01",
			Message: fmt.Sprintf("password authentication failed for user %q", c.startup.User()),
			Detail:  err.Error(), Hint: "Copy the user's secret from pg_authid to WIREFENCE_AUTH_FILE anew, or use WIREFENCE_AUTH_QUERY."}, err)
	}
	return err
}

// errRefused says that the server's ErrorResponse is in the buffer.
var errRefused = errors.New("the upstream refuses the login")

// runClientSCRAM logs in to the server by SCRAM.
func (c *connector) runClientSCRAM(cand *candidate, login *scram.Client) error {
	first, err := login.First()
	if err != nil {
		return err
	}
	if _, err = cand.link.Write(wire.Encode(&pgproto3.SASLInitialResponse{AuthMechanism: login.Mechanism(), Data: []byte(first)})); err != nil {
		return err
	}
	said, err := c.readSASLData(cand, wire.AuthSASLContinue)
	if err != nil {
		return ignoreRefused(err)
	}
	final, err := login.Next(said)
	if err != nil {
		return err
	}
	if _, err = cand.link.Write(wire.Encode(&pgproto3.SASLResponse{Data: []byte(final)})); err != nil {
		return err
	}
	if said, err = c.readSASLData(cand, wire.AuthSASLFinal); err != nil {
		return ignoreRefused(err)
	}
	if err := login.Verify(said); err != nil {
		return c.endLogin(wire.Error{Code: "28000", Message: "the upstream server could not prove that it knows the user's password"}, err)
	}
	// The session ends if the server then asks the client for a password (Session.Proved).
	_, _, err = readUntil(cand.link, cand.from, wire.Authentication, wire.ErrorResponse)
	return err
}

func ignoreRefused(err error) error {
	if errors.Is(err, errRefused) {
		return nil
	}
	return err
}

// readSASLData reads the server's next SASL message. It returns errRefused for an
// ErrorResponse, which stays in the buffer.
func (c *connector) readSASLData(cand *candidate, kind uint32) (string, error) {
	msg, at, err := readUntil(cand.link, cand.from, wire.Authentication, wire.ErrorResponse)
	switch {
	case err != nil:
		return "", err
	case msg[0] == wire.ErrorResponse:
		return "", errRefused
	case wire.AuthKind(msg) != kind:
		return "", fmt.Errorf("the server answers SCRAM with an Authentication message of code %d", wire.AuthKind(msg))
	}
	said := string(wire.AuthData(msg))
	cand.from.used(at + len(msg))
	return said, nil
}
