package proxy

import (
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/wirefence/wirefence/internal/quietlog"
	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// conn is one client's session, and owns both sockets. run carries the login; then a
// driver carries the bytes of either side.
type conn struct {
	server *Server
	client net.Conn
	up     net.Conn
	route  upstream.Route // of up
	origin Origin         // for Refusals
	// pending is the session's entry in the limits, also after its login.
	pending *pending
	log     *slog.Logger

	mu            sync.Mutex // guards the fields below; withCore takes it
	core          *session.Session
	coreFailed    bool        // the core has panicked and must not be called
	endReason     *wire.Error // the FATAL that ends the session once Session.MayEnd; nil while it may stay
	driver        driver
	holdScheduled bool          // the holdReleaser's queue has it
	exchangeEnded chan struct{} // closed when the proxy's exchange has been answered; nil if no cancel waits for that
	traffic       traffic
	locks         SessionLocks // nil if they aren't followed
	looking       bool         // at them

	once  sync.Once     // finish
	ended chan struct{} // closed when the session has ended
	watch activityWatch // used by the sweeper alone

	refusals quietlog.Limiter // log lines of refusals
}

// driver carries the bytes of a session. Other goroutines call its methods under the
// session's lock; the methods don't block.
type driver interface {
	wakeServerSide() // has it call fromServer, which ends the session if it is to end
	wakeClientSide() // has it call fromClient, which takes the core's bytes for the server
	stopWaiting()    // ends reads at once, and writes to the client after a second
	close()          // closes the connections, after a panic
}

// loginDriver is the driver during the login. The login calls the core after each read,
// so nothing has to wake it.
type loginDriver struct{ *conn }

func (e loginDriver) wakeServerSide() {}
func (e loginDriver) wakeClientSide() {}

func (e loginDriver) stopWaiting() {
	_ = e.up.SetDeadline(past)
	_ = e.client.SetReadDeadline(past)
	_ = e.client.SetWriteDeadline(time.Now().Add(time.Second))
}

func (e loginDriver) close() {
	_ = e.client.Close()
	_ = e.up.Close()
}

var (
	past  = time.Unix(1, 0)
	never time.Time
)

// run carries the login to its end and hands the session to a driver. fromClient holds
// bytes that the client has sent already; cand is the server that has accepted it.
func (c *conn) run(began time.Time, cand *candidate, fromClient *buffer) {
	if err := c.login(cand, fromClient); err != nil {
		if limit := c.server.limits.evictedBy(c.pending); limit != nil {
			c.server.recordLimit(c.log, limit)
		} else {
			c.server.metrics.rejected.WithLabelValues("login").Inc()
		}
		logFailedLogin(c.log, err, time.Since(began))
		c.reportTimeout(err)
		c.hangUp()
		return
	}
	if limit := c.server.limits.loggedIn(c.pending); limit != nil { // evicted just before
		c.server.recordLimit(c.log, limit)
		refuse(c.client, limit.response)
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
		if name := core.ActualDatabase(); name != "" {
			c.origin.Database = name
		}
		switch o := &c.server.options; {
		case o.Locks == nil:
		case !core.OwnsServer():
			c.server.logLimits.unfollowed.On(c.log).Warn("cannot follow the session's advisory locks, so guards refuse the writes that need them: a transaction pooler stands before the server, or it is a replication connection. Name PostgreSQL itself in WIREFENCE_UPSTREAM")
		case c.origin.PID != 0:
			c.locks = o.Locks(c.origin.PID, c.origin.Database)
		}
	})
	c.server.metrics.logins.Inc()
	c.server.metrics.loginSeconds.Observe(time.Since(began).Seconds())
	c.log.Debug("session began", "login", time.Since(began))

	c.drive(fromClient, cand.from)
}

// guard calls do. A panic ends this session only, not the caller's loop over sessions.
func (c *conn) guard(do func()) {
	defer func() {
		if r := recover(); r != nil {
			c.reportPanic(r)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.driver.close()
		}
	}()
	do()
}

// withCore calls the core under the lock; every call of the core goes through it. After
// a panic the core's state is unknown, and it must not judge another message: that call
// and all later ones panic with errCoreFailed, and their guards close the connections.
func (c *conn) withCore(call func(core *session.Session)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.coreFailed {
		panic(errCoreFailed)
	}
	defer func() {
		if r := recover(); r != nil {
			c.coreFailed = true
			c.reportPanic(r)
			c.driver.wakeServerSide() // so that the driver fails, too, if it was not the caller
			panic(errCoreFailed)
		}
	}()
	call(c.core)
}

// errCoreFailed is the panic of withCore after the core has panicked, which has been
// logged.
var errCoreFailed = errors.New("the session has failed")

// hangUp closes both connections and ends a session that no driver carries.
func (c *conn) hangUp() {
	loginDriver{c}.close()
	c.finish()
}

// finish unregisters the session after its connections were closed. It may be called
// more than once.
func (c *conn) finish() {
	c.once.Do(func() {
		close(c.ended)
		c.refusals.End()
		if c.locks != nil {
			go c.locks.End() // it waits for a Look, and other sessions share this loop
		}
		c.log.Debug("session ended")
		c.server.unregister(c)
	})
}

// reportPanic logs and counts a panic; the caller ends the session. It is silent for
// errCoreFailed, whose cause was logged.
func (c *conn) reportPanic(reason any) {
	if reason == errCoreFailed {
		return
	}
	c.server.metrics.protocolErrors.Inc()
	c.log.Error("a session failed", "panic", reason, "stack", string(debug.Stack()))
}

func (c *conn) takeServerBytes() (b []byte) {
	c.withCore(func(core *session.Session) { b = core.TakeToServer() })
	return b
}

// fromClient passes bytes of the client to the core.
func (c *conn) fromClient(in []byte, out *session.Out) (used int, held, over, done bool) {
	c.withCore(func(core *session.Session) {
		used = core.FromClient(in, out)
		c.traffic.fromClient += uint64(used)
		held, over, done = core.InputWaits(), core.Fatal() != nil, core.Terminated()
	})
	return used, held, over, done
}

// fromServer passes bytes of the server to the core, and ends the session if it has an
// endReason and may end now.
func (c *conn) fromServer(in []byte, out *session.Out) (used int, wake, over bool) {
	c.withCore(func(core *session.Session) {
		used, wake = core.FromServer(in, out)
		c.traffic.fromServer += uint64(used)
		if c.endReason != nil && core.MayEnd() {
			core.End(*c.endReason)
		}
		over = core.Fatal() != nil
		c.updateHold(core)
		if due := core.LocksDue(); due != nil && !c.looking {
			c.looking = true
			go c.guard(func() { c.lookAtLocks(due) })
		}
	})
	return used, wake, over
}

// lookAtLocks looks at the locks that the session takes by itself, and has the answer passed on that waits
// for that.
func (c *conn) lookAtLocks(due *session.Look) {
	var failed *wire.Error
	if c.locks != nil && due.Advisory {
		if err := c.locks.Look(); err != nil {
			failed = &wire.Error{Code: "57P01", Message: "terminating connection: its advisory locks could not be followed", Detail: err.Error(),
				Hint: "They are free again. Connect, and take what you need anew."}
		}
	}
	if len(due.Claims) > 0 && failed == nil {
		if err := c.server.options.Rows.Look(due.Claims); err != nil {
			failed = &wire.Error{Code: "57P01", Message: "terminating connection: its lock in a row could not be followed", Detail: err.Error(),
				Hint: "The row may say that this process has the lock. That counts for nothing: take it anew once its time has passed."}
		}
	}
	c.withCore(func(core *session.Session) {
		c.looking = false
		core.LocksSeen(failed)
		c.driver.wakeServerSide()
	})
}

// updateHold schedules the release of the session's hold, and wakes the cancel requests
// that wait for the end of an exchange.
func (c *conn) updateHold(core *session.Session) {
	if !c.holdScheduled {
		if until := core.HoldDeadline(); !until.IsZero() {
			c.holdScheduled = true
			c.server.holdReleaser.schedule(c, until)
		}
	}
	if c.exchangeEnded != nil && core.Awaited() != session.AwaitsHold && core.Awaited() != session.AwaitsExchange {
		close(c.exchangeEnded)
		c.exchangeEnded = nil
	}
}

// appendFatal appends the FATAL that the client has to get, if any.
func (c *conn) appendFatal(dst []byte) []byte {
	c.withCore(func(core *session.Session) { dst = core.AppendFatal(dst) })
	return dst
}

// fatal returns the FATAL with which the core has ended the session, or nil.
func (c *conn) fatal() (why *wire.Error) {
	c.withCore(func(core *session.Session) { why = core.Fatal() })
	return why
}

// logAttrs returns the attributes that identify a session in the log.
func logAttrs(startup *wire.Startup, client net.Conn) []any {
	return []any{
		"client", client.RemoteAddr().String(), "user", startup.User(),
		"database", startup.Database(), "application", startup.Params["application_name"],
	}
}

// refuse sends a client the error as a FATAL.
func refuse(client net.Conn, e wire.Error) {
	e.Severity = "FATAL"
	_ = client.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = client.Write(e.Append(nil))
}
