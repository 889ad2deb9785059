package proxy

import (
	"errors"
	"io"

	"github.com/wirefence/wirefence/proxy/internal/scram"
	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

var (
	errBabble = errors.New("the server does not speak the protocol: a message of its login is too long")
)

// login passes messages in turn until the client may send queries. The server
// has spoken first; the client speaks when it is asked for a password.
func (c *conn) login(a *arrival, fromClient *buffer) error {
	var toClient, toServer writer
	toClient.conn, toServer.conn = c.client, c.up
	var out session.Out
	for {
		if err := c.roleDiffers(a); err != nil {
			return err
		}
		// A drain looks at the core meanwhile.
		used, done := 0, false
		c.withCore(func(core *session.Session) {
			used, _ = core.FromServer(a.from.bytes(), &out)
			done = core.LoggedIn()
		})
		if err := toClient.flush(&out); err != nil {
			return err
		}
		a.from.used(used)
		if err := c.dismissed(); err != nil || done {
			return err
		}
		if err := c.passPasswords(a, fromClient, &toServer, &out); err != nil {
			return err
		}
		if err := c.dismissed(); err != nil {
			return err
		}
		if len(a.from.bytes()) > maxLogin {
			return c.endLogin(wire.Error{Code: "08P01", Message: errBabble.Error()}, errBabble)
		}
		if _, err := a.from.read(c.up); err != nil {
			return c.refusedBy(err)
		}
	}
}

// refusedBy is why a login has ended whose server says no more: its last error, which
// the client has got.
func (c *conn) refusedBy(err error) error {
	var said *wire.Error
	c.withCore(func(core *session.Session) { said = core.LoginError() })
	switch {
	case said != nil:
		return &endedLogin{said: said, why: errors.New(said.Message)}
	case errors.Is(err, io.EOF):
		return errors.New("the server ended the connection without a word")
	}
	return err
}

// endLogin tells the client why its login ends.
func (c *conn) endLogin(said wire.Error, why error) error {
	refuse(c.client, said)
	return &endedLogin{said: &said, why: why}
}

// dismissed returns an error if the core has ended the session, of which the
// client is told here.
func (c *conn) dismissed() error {
	over := c.farewell()
	if over == nil {
		return nil
	}
	return c.endLogin(*over, errors.New(over.Message))
}

// passPasswords passes what the client says while the server waits for it, and
// what the core has for the server.
func (c *conn) passPasswords(a *arrival, fromClient *buffer, toServer *writer, out *session.Out) error {
	for {
		if c.wantsPassword() && c.bindsInVain(a, fromClient) {
			return c.endLogin(boundInVain, errors.New("the client binds its login to the proxy's certificate, which is not the server's"))
		}
		wanted, more := false, false
		c.withCore(func(core *session.Session) {
			wanted = core.WantsPassword()
			if wanted {
				fromClient.used(core.FromClient(fromClient.bytes(), out))
			}
			more = core.WantsPassword() && core.Farewell() == nil
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
		c.server.limits.waits(c.pending, true)
		_, err := fromClient.read(c.client)
		c.server.limits.waits(c.pending, false)
		if err != nil {
			return err
		}
	}
	if b := c.takeToServer(); len(b) > 0 {
		_, err := c.up.Write(b)
		return err
	}
	return nil
}

func (c *conn) wantsPassword() (wants bool) {
	c.withCore(func(core *session.Session) { wants = core.WantsPassword() })
	return wants
}

// boundInVain tells a client that logs in by channel binding why it can't.
var boundInVain = wire.Error{Code: "28000",
	Message: "SCRAM channel binding can't reach through the proxy, which ends TLS on both sides",
	Detail:  "The client binds its login to the proxy's certificate, but the server expects its own.",
	Hint:    "Let the proxy authenticate clients: set WIREFENCE_AUTH_FILE or WIREFENCE_AUTH_QUERY. Or connect with channel_binding=disable, or give the proxy the server's certificate."}

// bindsInVain reports whether a client logs in by channel binding that can't succeed,
// once it does: its end of the channel is the proxy's, the server's is another.
func (c *conn) bindsInVain(a *arrival, fromClient *buffer) bool {
	b := fromClient.bytes()
	if !a.noBinding || len(b) < wire.HeaderSize+len(scram.MechanismPlus)+1 {
		return false
	}
	a.noBinding = false // only the first answer names a mechanism
	return b[0] == wire.Password && wire.IsSASLInitial(b, scram.MechanismPlus)
}

// roleDiffers tells the client that its server does not have the role that
// sessions want, if the login's end shows it. The next client goes elsewhere.
func (c *conn) roleDiffers(a *arrival) error {
	if a.wanted == "" || !a.report() || a.admits() {
		return nil
	}
	return c.endLogin(wire.Error{Code: "57P03", Message: a.mismatch().Error(),
		Hint: "Connect again. With WIREFENCE_DATABASE_URL set, the proxy finds the right server at once."}, a.mismatch())
}
