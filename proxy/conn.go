package proxy

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// conn drives one client's session: it owns both sockets. After the login
// exactly one goroutine reads and one writes each of them: clientPump reads the
// client and writes to the server, serverPump the other way round.
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
	failed  bool          // the core has panicked, and is not called any more
	leaving *wire.Error   // with which the session ends as soon as it may; nil: it stays
	nudge   func()        // makes the driver look at leaving and the farewell; nil during the login
	send    func()        // makes the driver call FromClient, for what the core has for the server
	ticks   bool          // the keeper comes back to it
	turns   chan struct{} // closed when a question of the proxy's own has been answered; nil: nobody waits

	once  sync.Once // finish
	watch watch     // the sweeper's

	wake  chan struct{} // asks clientPump to call the core although nothing was read
	ended chan struct{} // closed when serverPump has ended

	refusals refusalLog
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
		c.log.Info("login ended", "error", err, "after", time.Since(began))
		c.sayWhy(err)
		c.finish()
		return
	}
	if limit := c.server.limits.loggedIn(c.pending); limit != nil { // in the last moment
		c.server.limited(c.log, limit)
		refuse(c.client, limit.say)
		c.finish()
		return
	}
	fromServer := a.from
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
	c.server.metrics.accepted.Inc()
	c.server.metrics.loginSeconds.Observe(time.Since(began).Seconds())
	c.log.Debug("session began", "login", time.Since(began))

	if l := c.server.nextLoop(); l != nil && l.adopt(c, fromClient, fromServer) {
		return
	}
	c.drive(func() { _ = c.up.SetReadDeadline(past) }, c.rouse)
	var pumps sync.WaitGroup
	pumps.Go(func() { c.guard(func() { c.serverPump(fromServer) }) })
	c.guard(func() { c.clientPump(fromClient) })
	pumps.Wait()
	c.finish()
}

// guard runs one of the session's pumps, or what ends the session from outside. A
// panic ends the session only: with both connections closed its pumps end.
func (c *conn) guard(do func()) {
	defer func() {
		if r := recover(); r != nil {
			c.panicked(r)
			_ = c.client.Close()
			_ = c.up.Close()
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
			if c.nudge != nil {
				c.nudge() // the driver, if it was not the driver that called
			}
			panic(errFailed)
		}
	}()
	call(c.core)
}

// errFailed is the panic of a call into a core that has failed. It has been
// reported.
var errFailed = errors.New("the session has failed")

// finish closes what is still open and forgets the session. It may be called
// more than once.
func (c *conn) finish() {
	c.once.Do(func() {
		_ = c.client.Close()
		_ = c.up.Close()
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
		held, over, done = core.Held(), core.Farewell() != nil, core.Done()
	})
	return used, held, over, done
}

// fromServer gives the core what the server has sent, and ends the session if it
// is to leave and may.
func (c *conn) fromServer(in []byte, out *session.Out) (used int, wake, over bool) {
	c.withCore(func(core *session.Session) {
		used, wake = core.FromServer(in, out)
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

// clientPump carries what the client sends to the server until either ends. It
// is the only one to write to the server.
func (c *conn) clientPump(in *buffer) {
	out := session.Out{}
	to := writer{conn: c.up}
	for {
		used, held, over, done := c.fromClient(in.bytes(), &out)
		err := to.flush(&out)
		in.used(used)
		switch {
		case over:
			c.nudge() // serverPump says goodbye
			return
		case err != nil:
			return // serverPump finds the same, and perhaps the server's last words
		case done:
			closeWrite(c.up)
			return
		case held:
			select {
			case <-c.wake:
			case <-c.ended:
				return
			}
			continue
		}
		if _, err := in.read(c.client); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				select {
				case <-c.ended:
					return
				case <-c.wake:
				default:
				}
				_ = c.client.SetReadDeadline(never)
				continue
			}
			closeWrite(c.up)
			return
		}
	}
}

// rouse makes clientPump call the core, whether it waits for the client's bytes
// or for replies. The order of the two steps matters: the deadline is lifted
// only after the channel was read.
func (c *conn) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
	_ = c.client.SetReadDeadline(past)
}

// serverPump carries what the server sends to the client until either ends. It
// is the only one to write to the client.
func (c *conn) serverPump(in *buffer) {
	out := session.Out{}
	to := writer{conn: c.client}
	defer c.goodbye(&to)
	for {
		used, wake, over := c.fromServer(in.bytes(), &out)
		if wake {
			c.rouse()
		}
		if err := to.flush(&out); err != nil {
			return
		}
		in.used(used)
		if over {
			return
		}
		if _, err := in.read(c.up); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		_ = c.up.SetReadDeadline(never)
	}
}

// goodbye ends the session from the server's side: the client gets the FATAL
// that is due, if any, and both connections are closed.
func (c *conn) goodbye(to *writer) {
	defer func() {
		close(c.ended)
		_ = c.client.Close()
		_ = c.up.Close()
	}()
	if words := c.lastWords(nil); len(words) > 0 && to.err == nil {
		_ = c.client.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.client.Write(words)
	}
}

func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = conn.Close()
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
