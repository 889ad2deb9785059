package proxy

import (
	"errors"
	"io"

	"github.com/wirefence/wirefence/proxy/internal/scram"
	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

var errLoginTooLong = errors.New("the server does not speak the protocol: a message of its login is too long")

// login forwards messages until the client may send queries. The server has sent the
// first one; the client may send only when the server asks for a password.
func (c *conn) login(cand *candidate, fromClient *buffer) error {
	var toClient, toServer writer
	toClient.conn, toServer.conn = c.client, c.up
	var out session.Out
	for {
		if err := c.checkRole(cand); err != nil {
			return err
		}
		// A drain may call the core, and end the session, between these steps.
		used, done := 0, false
		c.withCore(func(core *session.Session) {
			used, _ = core.FromServer(cand.from.bytes(), &out)
			done = core.LoggedIn()
		})
		if err := toClient.flush(&out); err != nil {
			return err
		}
		cand.from.used(used)
		if err := c.checkEnded(); err != nil || done {
			return err
		}
		if err := c.forwardPasswords(cand, fromClient, &toServer, &out); err != nil {
			return err
		}
		if err := c.checkEnded(); err != nil {
			return err
		}
		if len(cand.from.bytes()) > maxLoginBytes {
			return c.endLogin(wire.Error{Code: "08P01", Message: errLoginTooLong.Error()}, errLoginTooLong)
		}
		if _, err := cand.from.read(c.up); err != nil {
			return c.serverLoginError(err)
		}
	}
}

// serverLoginError returns the error of a login after the server's connection failed by
// err: the server's last ErrorResponse, which the client has got, if there is one.
func (c *conn) serverLoginError(err error) error {
	var said *wire.Error
	c.withCore(func(core *session.Session) { said = core.LoginError() })
	switch {
	case said != nil:
		return &endedLoginError{sent: said, cause: errors.New(said.Message)}
	case errors.Is(err, io.EOF):
		return errors.New("the server closed the connection without an error message")
	}
	return err
}

// endLogin sends the client a FATAL and returns the login's error.
func (c *conn) endLogin(said wire.Error, why error) error {
	refuse(c.client, said)
	return &endedLoginError{sent: &said, cause: why}
}

// checkEnded tells the client if the core has ended the session, and returns an error.
func (c *conn) checkEnded() error {
	over := c.fatal()
	if over == nil {
		return nil
	}
	return c.endLogin(*over, errors.New(over.Message))
}

// forwardPasswords forwards the client's messages while the server waits for them, and
// the core's own messages to the server.
func (c *conn) forwardPasswords(cand *candidate, fromClient *buffer, toServer *writer, out *session.Out) error {
	for {
		if c.wantsPassword() && c.bindsToProxy(cand, fromClient) {
			said := bindingError
			if cand.bindingWithheld {
				said.Detail = "Another proxy ends the client's TLS before this one."
			}
			return c.endLogin(said, errors.New("the client uses channel binding, but its TLS ends at another certificate than the server's"))
		}
		wanted, more := false, false
		c.withCore(func(core *session.Session) {
			wanted = core.WantsPassword()
			if wanted {
				fromClient.used(core.FromClient(fromClient.bytes(), out))
			}
			more = core.WantsPassword() && core.Fatal() == nil
		})
		if !wanted {
			break
		}
		if err := toServer.flush(out); err != nil {
			return err
		}
		if !more {
			break
		}
		c.server.limits.setAwaitsClient(c.pending, true)
		_, err := fromClient.read(c.client)
		c.server.limits.setAwaitsClient(c.pending, false)
		if err != nil {
			return err
		}
	}
	if b := c.takeServerBytes(); len(b) > 0 {
		_, err := c.up.Write(b)
		return err
	}
	return nil
}

func (c *conn) wantsPassword() (wants bool) {
	c.withCore(func(core *session.Session) { wants = core.WantsPassword() })
	return wants
}

// bindingError is the refusal of a login by channel binding.
var bindingError = wire.Error{Code: "28000",
	Message: "SCRAM channel binding is not possible through the proxy, which ends TLS on both sides",
	Detail:  "The client binds its login to the proxy's certificate, but the server expects its own.",
	Hint:    "Let the proxy authenticate clients: set WIREFENCE_AUTH_FILE or WIREFENCE_AUTH_QUERY. Or connect with channel_binding=disable, or give the proxy the server's certificate."}

// bindsToProxy reports whether a client logs in by channel binding that can't succeed: it
// binds to the proxy's certificate, and the server has another one. Without TLS here, a client
// that has it (flag y of RFC 5802) is behind another proxy, and the server would take the
// missing offer for an attack. It reports that once.
func (c *conn) bindsToProxy(cand *candidate, fromClient *buffer) bool {
	b := fromClient.bytes()
	if !cand.bindingDiffers || len(b) < wire.HeaderSize+len(scram.MechanismPlus)+1 {
		return false
	}
	cand.bindingDiffers = false // only the first answer names a mechanism
	mechanism, response, _ := wire.CString(b[wire.HeaderSize:])
	const length = 4 // of the response
	hasTLS := string(mechanism) == scram.Mechanism && cand.bindingWithheld && len(response) > length && response[length] == 'y'
	return b[0] == wire.Password && (string(mechanism) == scram.MechanismPlus || hasTLS)
}

// checkRole refuses the client if the end of the login shows that its server doesn't have
// the wanted role. The host has learned its role, so the next client gets another one.
func (c *conn) checkRole(cand *candidate) error {
	if cand.wantedRole == "" || !cand.learnRole() || cand.admits() {
		return nil
	}
	return c.endLogin(wire.Error{Code: "57P03", Message: cand.mismatch().Error(),
		Hint: "Connect again. Set WIREFENCE_DATABASE_URL so that the proxy knows the servers' roles before a login."}, cand.mismatch())
}
