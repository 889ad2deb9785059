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
	user   string
	origin Origin // for Refusals
	log    *slog.Logger

	mu      sync.Mutex // guards what follows
	core    *session.Session
	leaving *wire.Error // with which the session ends as soon as it may; nil: it stays
	nudge   func()      // makes the driver look at leaving and the farewell; nil during the login

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
		c.server.metrics.rejected.WithLabelValues("login").Inc()
		c.log.Info("login ended", "error", err, "after", time.Since(began))
		c.sayWhy(err)
		c.finish()
		return
	}
	fromServer := a.from
	_ = c.client.SetDeadline(never)
	_ = c.up.SetDeadline(never)
	if key := c.core.Key(); key != "" {
		c.server.keys.Store(key, c.route)
		c.origin.PID = pidOf(key)
	}
	if name := c.core.Reached(); name != "" {
		c.origin.Database = name
	}
	c.server.metrics.accepted.Inc()
	c.server.metrics.loginSeconds.Observe(time.Since(began).Seconds())
	c.log.Debug("session began", "login", time.Since(began))

	if l := c.server.nextLoop(); l != nil && l.adopt(c, fromClient, fromServer) {
		return
	}
	c.drive(func() { _ = c.up.SetReadDeadline(past) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				c.panicked(r)
				_ = c.client.Close()
			}
		}()
		c.serverPump(fromServer)
	}()
	c.clientPump(fromClient)
	<-done
	c.finish()
}

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

// panicked reports a bug; the session is ended by the caller.
func (c *conn) panicked(reason any) {
	c.server.metrics.trouble.Inc()
	c.log.Error("a session failed", "panic", reason, "stack", string(debug.Stack()))
}

func (c *conn) takeToServer() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.TakeToServer()
}

// clientPump carries what the client sends to the server until either ends. It
// is the only one to write to the server.
func (c *conn) clientPump(in *buffer) {
	out := session.Out{}
	to := writer{conn: c.up}
	for {
		c.mu.Lock()
		used := c.core.FromClient(in.bytes(), &out)
		held, over := c.core.Held(), c.core.Farewell() != nil
		done := c.core.Done()
		c.mu.Unlock()
		err := to.flush(&out)
		in.used(used)
		switch {
		case over:
			c.nudge() // serverPump says goodbye
			return
		case err != nil:
			return // serverPump finds the same, and perhaps the server's last words
		case done:
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
		c.mu.Lock()
		used, wake := c.core.FromServer(in.bytes(), &out)
		if c.leaving != nil && c.core.MayEnd() {
			c.core.End(*c.leaving)
		}
		over := c.core.Farewell() != nil
		c.mu.Unlock()
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
	c.mu.Lock()
	words := c.core.LastWords(nil)
	c.mu.Unlock()
	if len(words) > 0 && to.err == nil {
		_ = c.client.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.client.Write(words)
	}
	close(c.ended)
	_ = c.client.Close()
	_ = c.up.Close()
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
