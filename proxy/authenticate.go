package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/wirefence/wirefence/proxy/internal/scram"
	"github.com/wirefence/wirefence/proxy/internal/users"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// authenticate lets the client prove that it knows its password, by SCRAM, and
// keeps the credentials that come of it for the login upstream. If it can't, it
// has been told.
func (e *entrance) authenticate(ctx context.Context) error {
	user := e.startup.User()
	entry, err := e.server.users.Lookup(ctx, user)
	unusable := (*users.UnusableError)(nil)
	switch {
	case err == nil:
	case errors.Is(err, users.ErrUnknown):
		entry = e.server.users.Mock(user)
	case errors.As(err, &unusable):
		e.log.Warn("a user can't log in", "reason", unusable.Why)
		entry = e.server.users.Mock(user)
	default:
		if e.server.unknowable.note(err) {
			e.log.Error("cannot look up a user", "error", err)
		}
		return e.tell(wire.Error{Code: "08006", Message: "the proxy could not look up the user's password", Hint: "The proxy's log says why."}, err)
	}
	exchange := scram.NewServer(entry.Secret, err != nil, e.client.binding)
	key, err := e.exchange(ctx, exchange)
	if err != nil {
		return err
	}
	proved := entry.Credentials(key)
	e.proved = &proved
	return nil
}

// exchange speaks SCRAM with the client (documentation, "SASL Authentication").
func (e *entrance) exchange(ctx context.Context, s *scram.Server) (scram.Key, error) {
	if _, err := e.client.Write(wire.AppendAuthSASL(nil, s.Mechanisms())); err != nil {
		return scram.Key{}, &endedLogin{why: err}
	}
	msg, err := e.answer(ctx)
	if err != nil {
		return scram.Key{}, err
	}
	mechanism, data, ok := wire.SASLInitial(msg)
	if !ok {
		return scram.Key{}, e.failed(scram.ErrMalformed)
	}
	first, err := s.First(mechanism, data)
	if err != nil {
		return scram.Key{}, e.failed(err)
	}
	if _, err := e.client.Write(wire.AppendAuthData(nil, wire.AuthSASLContinue, first)); err != nil {
		return scram.Key{}, &endedLogin{why: err}
	}
	if msg, err = e.answer(ctx); err != nil {
		return scram.Key{}, err
	}
	final, key, err := s.Final(string(msg[wire.HeaderSize:]))
	if err != nil {
		return scram.Key{}, e.failed(err)
	}
	_, err = e.client.Write(wire.AppendAuthData(nil, wire.AuthSASLFinal, final))
	if err != nil {
		return scram.Key{}, &endedLogin{why: err}
	}
	return key, nil
}

// maxAnswer bounds in bytes what a client may answer to an Authentication
// message, as PostgreSQL's PG_MAX_SASL_MESSAGE_LENGTH does.
const maxAnswer = 1024

// answer reads the client's next message, which must be a Password.
func (e *entrance) answer(ctx context.Context) ([]byte, error) {
	for {
		typ, size, ok := wire.Header(e.fromClient.bytes())
		if ok && (typ != wire.Password || size == 0 || size > maxAnswer) {
			return nil, e.tell(wire.Error{Code: "08P01", Message: fmt.Sprintf("expected SASL response, got message type %d", typ)},
				errors.New("the client broke the protocol of authentication"))
		}
		if ok && size <= len(e.fromClient.bytes()) {
			msg := append([]byte(nil), e.fromClient.bytes()[:size]...)
			e.fromClient.used(size)
			return msg, nil
		}
		// A client may leave to ask its user for the password.
		e.server.limits.waits(e.pending, true)
		_, err := e.fromClient.read(e.client)
		e.server.limits.waits(e.pending, false)
		if err != nil {
			if why := dismissal(ctx); why != nil {
				return nil, e.tell(*why, context.Cause(ctx))
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, e.tell(tooLate, err)
			}
			return nil, &endedLogin{why: err}
		}
	}
}

// failed tells the client why its login fails.
func (e *entrance) failed(err error) error {
	switch {
	case errors.Is(err, scram.ErrWrongPassword):
		return e.tell(wire.Error{Code: "28P01", Message: fmt.Sprintf("password authentication failed for user %q", e.startup.User())}, err)
	case errors.Is(err, scram.ErrDowngrade), errors.Is(err, scram.ErrBinding), errors.Is(err, scram.ErrUnsupportedBinding):
		return e.tell(wire.Error{Code: "28000", Message: err.Error()}, err)
	}
	return e.tell(wire.Error{Code: "08P01", Message: err.Error()}, err)
}

func (e *entrance) tell(said wire.Error, err error) error {
	refuse(e.client, said)
	return &endedLogin{said: &said, why: err}
}

// logIn logs the client in to a server with what it has proved. What the server
// says from AuthenticationOk on, or an error, is left for the client.
func (e *entrance) logIn(a *arrival) error {
	msg := whole(a.from.bytes())
	switch wire.AuthKind(msg) {
	case wire.AuthOk:
		return nil
	case wire.AuthSASL:
	default:
		return e.tell(wire.Error{Code: "28000",
			Message: "the upstream server asks for an authentication that the proxy can't do for the client",
			Detail:  fmt.Sprintf("It asks by message R with code %d.", wire.AuthKind(msg)),
			Hint:    "Where the proxy authenticates clients (WIREFENCE_AUTH_FILE, WIREFENCE_AUTH_QUERY), the server's pg_hba.conf must say scram-sha-256 for it."},
			errors.New("the upstream asks for another authentication than SCRAM"))
	}
	login, ok := scram.NewClient(*e.proved, wire.Mechanisms(msg), a.link.Binding)
	if !ok {
		return e.tell(wire.Error{Code: "28000", Message: "the upstream server offers no SCRAM-SHA-256"},
			errors.New("the upstream offers no mechanism that the proxy knows"))
	}
	a.from.used(len(msg))
	err := e.converse(a, login)
	if errors.Is(err, scram.ErrOtherSecret) {
		return e.tell(wire.Error{Code: "28P01",
			Message: fmt.Sprintf("password authentication failed for user %q", e.startup.User()),
			Detail:  err.Error(), Hint: "Copy the user's secret from pg_authid to WIREFENCE_AUTH_FILE anew, or use WIREFENCE_AUTH_QUERY."}, err)
	}
	return err
}

// errRefused says that the server's refusal is left in the buffer.
var errRefused = errors.New("the upstream refuses the login")

// converse speaks SCRAM with the server.
func (e *entrance) converse(a *arrival, login *scram.Client) error {
	first, err := login.First()
	if err != nil {
		return err
	}
	if _, err = a.link.Write(wire.AppendSASLInitial(nil, login.Mechanism(), first)); err != nil {
		return err
	}
	said, err := e.data(a, wire.AuthSASLContinue)
	if err != nil {
		return ignoreRefused(err)
	}
	final, err := login.Next(said)
	if err != nil {
		return err
	}
	if _, err = a.link.Write(wire.AppendSASLResponse(nil, final)); err != nil {
		return err
	}
	if said, err = e.data(a, wire.AuthSASLFinal); err != nil {
		return ignoreRefused(err)
	}
	if err := login.Verify(said); err != nil {
		return e.tell(wire.Error{Code: "28000", Message: "the upstream server could not prove that it knows the user's password"}, err)
	}
	// The session sees to it that no further demand reaches the client.
	_, _, err = nextOf(a.link, a.from, wire.Authentication, wire.ErrorResponse)
	return err
}

func ignoreRefused(err error) error {
	if errors.Is(err, errRefused) {
		return nil
	}
	return err
}

// data reads the server's next part of the exchange. An error of the server's
// stays in the buffer.
func (e *entrance) data(a *arrival, kind uint32) (string, error) {
	msg, at, err := nextOf(a.link, a.from, wire.Authentication, wire.ErrorResponse)
	switch {
	case err != nil:
		return "", err
	case msg[0] == wire.ErrorResponse:
		return "", errRefused
	case wire.AuthKind(msg) != kind:
		return "", fmt.Errorf("the server answers SCRAM with an Authentication message of code %d", wire.AuthKind(msg))
	}
	said := string(wire.AuthData(msg))
	a.from.used(at + len(msg))
	return said, nil
}
