package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// conn drives one client's session: it owns both sockets. After the login
// exactly one goroutine reads and one writes each of them: clientPump reads the
// client and writes to the server, serverPump the other way round.
type conn struct {
	server *Server
	client net.Conn
	up     net.Conn
	addr   address // where up leads
	log    *slog.Logger

	mu       sync.Mutex // guards core and draining
	core     *session.Session
	draining bool

	nudge func()    // makes the driver look at draining and the farewell; guarded by mu
	once  sync.Once // finish

	wake  chan struct{} // asks clientPump to call the core although nothing was read
	ended chan struct{} // closed when serverPump has ended

	refusals refusalLog
}

var (
	past  = time.Unix(1, 0)
	never time.Time
)

// run logs the client in and serves it until either side ends. startup is the
// client's first packet, in what it had sent behind it.
func (c *conn) run(startup *wire.Startup, fromClient *buffer) {
	began := time.Now()
	fromServer := &buffer{}
	if err := c.login(startup, fromClient, fromServer); err != nil {
		c.server.metrics.rejected.WithLabelValues("login").Inc()
		c.log.Info("login ended", "error", err, "after", time.Since(began))
		c.finish()
		return
	}
	_ = c.client.SetDeadline(never)
	_ = c.up.SetDeadline(never)
	if key := c.core.Key(); key != "" {
		c.server.keys.Store(key, c.addr)
	}
	c.server.metrics.accepted.Inc()
	c.server.metrics.loginSeconds.Observe(time.Since(began).Seconds())
	c.log.Debug("session began", "login", time.Since(began))

	if l := c.server.nextLoop(); l != nil && l.adopt(c, fromClient, fromServer) {
		return
	}
	c.mu.Lock()
	c.nudge = func() { _ = c.up.SetReadDeadline(past) }
	c.mu.Unlock()
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

var errLoginRefused = errors.New("the server ended the connection")

// login passes messages in turn until the client may send queries. The server
// speaks first; the client speaks when it is asked for a password.
func (c *conn) login(startup *wire.Startup, fromClient, fromServer *buffer) error {
	if _, err := c.up.Write(startup.Raw); err != nil {
		return err
	}
	var toClient, toServer writer
	toClient.conn, toServer.conn = c.client, c.up
	var out session.Out
	for {
		for {
			// A drain looks at the core meanwhile.
			c.mu.Lock()
			wanted := c.core.WantsPassword()
			if wanted {
				fromClient.used(c.core.FromClient(fromClient.bytes(), &out))
			}
			more := c.core.WantsPassword()
			c.mu.Unlock()
			if !wanted {
				break
			}
			if err := toServer.flush(&out); err != nil {
				return err
			}
			if !more {
				break
			}
			if _, err := fromClient.read(c.client); err != nil {
				return err
			}
		}
		if b := c.takeToServer(); len(b) > 0 {
			if _, err := c.up.Write(b); err != nil {
				return err
			}
		}
		if _, err := fromServer.read(c.up); err != nil {
			if errors.Is(err, io.EOF) {
				return errLoginRefused // it has said why to the client
			}
			return err
		}
		c.mu.Lock()
		used, _ := c.core.FromServer(fromServer.bytes(), &out)
		over, done := c.core.Farewell(), c.core.LoggedIn()
		c.mu.Unlock()
		if err := toClient.flush(&out); err != nil {
			return err
		}
		fromServer.used(used)
		if over != nil {
			_, _ = c.client.Write(over.Append(nil))
			return errors.New(over.Message)
		}
		if done {
			return nil
		}
	}
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
		if c.draining && c.core.Idle() {
			c.core.End(shutdownError)
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
	f := c.core.Farewell()
	c.mu.Unlock()
	if f != nil {
		_ = c.client.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.client.Write(f.Append(nil))
	}
	close(c.ended)
	_ = c.client.Close()
	_ = c.up.Close()
}

var shutdownError = wire.Error{Code: "57P01", Message: "terminating connection due to administrator command"}

// drain ends the session now if it is idle, else as soon as it is.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	if c.core.Idle() && c.nudge != nil {
		c.nudge()
	}
}

// abort ends the session whatever it is doing.
func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	c.core.End(shutdownError)
	if c.nudge != nil {
		c.nudge()
	}
	// A login, or a goroutine that waits for one side to take bytes.
	_ = c.up.SetDeadline(past)
	_ = c.client.SetReadDeadline(past)
	_ = c.client.SetWriteDeadline(time.Now().Add(time.Second))
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

// forwardCancel passes a CancelRequest on. The client's connection stays open
// until the server has closed its own, which says that the signal is sent: what
// the client sends next can't be hit.
func (s *Server) forwardCancel(ctx context.Context, packet []byte) error {
	a, ok := s.keys.Load(string(packet[8:]))
	target := s.upstream
	if ok {
		target = &upstream{addrs: []address{a.(address)}}
	}
	up, _, err := target.dial(ctx, s.options.ConnectTimeout)
	if err != nil {
		return err
	}
	defer up.Close()
	_ = up.SetDeadline(time.Now().Add(s.options.ConnectTimeout))
	if _, err := up.Write(packet); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, up)
	s.metrics.cancels.Inc()
	return err
}
