package proxy

import (
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// conn is one client's session: it owns both sockets. The login is conn's own; then
// a driver carries what either side sends.
type conn struct {
	server *Server
	client net.Conn
	up     net.Conn
	route  upstream.Route // where up leads
	origin Origin         // for Refusals
	// pending is what the limits count for the session, also when it isn't pending
	// any more.
	pending *pending
	log     *slog.Logger

	mu      sync.Mutex // guards what follows; withCore takes it
	core    *session.Session
	failed  bool        // the core has panicked, and is not called any more
	leaving *wire.Error // with which the session ends as soon as it may; nil: it stays
	driver  driver
	ticks   bool          // the keeper comes back to it
	turns   chan struct{} // closed when a question of the proxy's own has been answered; nil: nobody waits
	traffic traffic

	once  sync.Once     // finish
	ended chan struct{} // closed when the session has ended
	watch watch         // the sweeper's

	refusals refusalLog
}

// driver carries a session. Its methods ask it for something from outside; they are
// called under the session's lock, and don't wait.
type driver interface {
	nudge()  // look at leaving and the farewell
	send()   // call FromClient, for what the core has for the server
	hasten() // the session is over: wait for the server no more, and for the client a second
	close()  // close the connections: there is a bug
}

// entering is the driver during the login, which looks at the core by itself.
type entering struct{ *conn }

func (e entering) nudge() {}
func (e entering) send()  {}

func (e entering) hasten() {
	_ = e.up.SetDeadline(past)
	_ = e.client.SetReadDeadline(past)
	_ = e.client.SetWriteDeadline(time.Now().Add(time.Second))
}

func (e entering) close() {
	_ = e.client.Close()
	_ = e.up.Close()
}

var (
	past  = time.Unix(1, 0)
	never time.Time
)

// run ends the client's login and serves it until either side ends. What the
// client has sent already is in the buffer; a is the server that has taken it.
func (c *conn) run(began time.Time, a *arrival, fromClient *buffer) {
	if err := c.login(a, fromClient); err != nil {
		if limit := c.server.limits.gaveWay(c.pending); limit != nil {
			c.server.limited(c.log, limit)
		} else {
			c.server.metrics.rejected.WithLabelValues("login").Inc()
		}
		logFailedLogin(c.log, err, time.Since(began))
		c.sayWhy(err)
		c.hangUp()
		return
	}
	if limit := c.server.limits.loggedIn(c.pending); limit != nil { // in the last moment
		c.server.limited(c.log, limit)
		refuse(c.client, limit.say)
		c.hangUp()
		return
	}
	_ = c.client.SetDeadline(never)
	_ = c.up.SetDeadline(never)
	c.withCore(func(core *session.Session) {
		if key := core.Key(); key != "" {
			c.server.keys.Store(key, c)
			c.origin.PID = pidOf(key)
		}
		if name := core.Reached(); name != "" {
			c.origin.Database = name
		}
	})
	c.server.metrics.logins.Inc()
	c.server.metrics.loginSeconds.Observe(time.Since(began).Seconds())
	c.log.Debug("session began", "login", time.Since(began))

	c.carry(fromClient, a.from)
}

// guard runs what looks at the session from outside. A panic ends the session only.
func (c *conn) guard(do func()) {
	defer func() {
		if r := recover(); r != nil {
			c.panicked(r)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.driver.close()
		}
	}()
	do()
}

// withCore calls into the core, under the lock. All calls go through here. After a
// panic the core can't be trusted with what the session sends: that call and all
// that follow panic with errFailed, and their guards close the session's connections.
func (c *conn) withCore(call func(core *session.Session)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed {
		panic(errFailed)
	}
	defer func() {
		if r := recover(); r != nil {
			c.failed = true
			c.panicked(r)
			c.driver.nudge() // if it was not the driver that called
			panic(errFailed)
		}
	}()
	call(c.core)
}

// errFailed is the panic of a call into a core that has failed. It has been
// reported.
var errFailed = errors.New("the session has failed")

// hangUp ends a session that no driver carries.
func (c *conn) hangUp() {
	entering{c}.close()
	c.finish()
}

// finish forgets the session, whose connections are closed. It may be called more
// than once.
func (c *conn) finish() {
	c.once.Do(func() {
		close(c.ended)
		c.log.Debug("session ended")
		c.server.forget(c)
	})
}

// panicked reports a bug, once; the session is ended by the caller.
func (c *conn) panicked(reason any) {
	if reason == errFailed {
		return
	}
	c.server.metrics.trouble.Inc()
	c.log.Error("a session failed", "panic", reason, "stack", string(debug.Stack()))
}

func (c *conn) takeToServer() (b []byte) {
	c.withCore(func(core *session.Session) { b = core.TakeToServer() })
	return b
}

// fromClient gives the core what the client has sent.
func (c *conn) fromClient(in []byte, out *session.Out) (used int, held, over, done bool) {
	c.withCore(func(core *session.Session) {
		used = core.FromClient(in, out)
		c.traffic.fromClient += uint64(used)
		held, over, done = core.Held(), core.Farewell() != nil, core.Done()
	})
	return used, held, over, done
}

// fromServer gives the core what the server has sent, and ends the session if it
// is to leave and may.
func (c *conn) fromServer(in []byte, out *session.Out) (used int, wake, over bool) {
	c.withCore(func(core *session.Session) {
		used, wake = core.FromServer(in, out)
		c.traffic.fromServer += uint64(used)
		if c.leaving != nil && core.MayEnd() {
			core.End(*c.leaving)
		}
		over = core.Farewell() != nil
		c.noteHold(core)
	})
	return used, wake, over
}

// noteHold has the keeper come back to a session that holds, and lets those go on
// who waited for the end of a question of the proxy's own.
func (c *conn) noteHold(core *session.Session) {
	if !c.ticks {
		if until := core.HoldUntil(); !until.IsZero() {
			c.ticks = true
			c.server.keeper.add(c, until)
		}
	}
	if c.turns != nil && core.Turn() != session.HoldsTurn && core.Turn() != session.ProxysTurn {
		close(c.turns)
		c.turns = nil
	}
}

// lastWords appends the FATAL that is due to the client, if any.
func (c *conn) lastWords(dst []byte) []byte {
	c.withCore(func(core *session.Session) { dst = core.LastWords(dst) })
	return dst
}

// farewell is the error with which the core has ended the session, or nil.
func (c *conn) farewell() (why *wire.Error) {
	c.withCore(func(core *session.Session) { why = core.Farewell() })
	return why
}

// attrs describe the session in logs.
func attrs(startup *wire.Startup, client net.Conn) []any {
	return []any{
		"client", client.RemoteAddr().String(), "user", startup.User(),
		"database", startup.Database(), "application", startup.Params["application_name"],
	}
}

// refuse tells a client that it can't be served, and why.
func refuse(client net.Conn, e wire.Error) {
	e.Severity = "FATAL"
	_ = client.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = client.Write(e.Append(nil))
}
