package proxy

import (
	"context"
	"errors"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
	"github.com/wirefence/wirefence/proxy/internal/users"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Server accepts clients and serves each on a connection of its own to the
// upstream. Its methods are safe for concurrent use.
type Server struct {
	options   Options
	upstream  *upstream.Upstream
	tls       *clientTLS       // nil: clients can't use TLS
	users     *users.Directory // nil: servers authenticate clients
	config    *session.Config
	databases *session.Databases
	keeper    *keeper
	metrics   *metrics
	probes    *prometheus.CounterVec

	listeners []net.Listener
	http      []net.Listener // what the caller serves
	keys      sync.Map       // cancel key → *conn
	limits    limits
	draining  atomic.Bool
	closing   atomic.Bool     // the listeners, that is
	entering  context.Context // what comes before a session; ends with errDraining
	enough    context.CancelCauseFunc
	accepting sync.WaitGroup
	handlers  sync.WaitGroup

	loops loops

	abort     chan struct{} // closed by Abort
	abortOnce sync.Once
	resigned  chan struct{} // closed when no lease is waited for any more

	standbyRefusals standbyLog
	endings         standbyLog
	unreachable     flood // clients that no upstream server takes
	unknowable      flood // clients whose user can't be looked up

	shutdown chan struct{} // closed by the first Shutdown
	over     chan struct{} // closed when Serve has returned

	mu      sync.Mutex
	serving bool // Serve was called
	stopped bool // Shutdown was called
	ending  bool // the grace of a drain is over
	conns   map[*conn]struct{}
	past    traffic                 // of sessions that have ended
	left    map[*upstream.Host]bool // primaries that were left behind; standingNews' alone
}

// New makes a server. It reports options that can't work.
func New(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	failed := func(err error) {
		o.Logger.Error("cannot use a file that has changed; the last good one stays in use", "error", err)
	}
	up, err := o.newUpstream(failed)
	if err != nil {
		return nil, err
	}
	secure, err := newClientTLS(o.TLS, failed)
	if err != nil {
		return nil, err
	}
	directory, err := o.newDirectory(failed)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(&o)
	if err != nil {
		return nil, err
	}
	probes, err := newProbes(o.Registerer)
	if err != nil {
		return nil, err
	}
	if up.Watches() {
		if err := register(o.Registerer, newStandings(up)); err != nil {
			return nil, err
		}
	}
	s := &Server{
		options: o, upstream: up, tls: secure, users: directory, metrics: m, probes: probes, config: o.sessionConfig(up.Pooling),
		databases: session.NewDatabases(time.Now), keeper: newKeeper(), conns: map[*conn]struct{}{}, left: map[*upstream.Host]bool{},
		abort: make(chan struct{}), resigned: make(chan struct{}), shutdown: make(chan struct{}), over: make(chan struct{}),
	}
	s.unreachable.report = func(n int, last error) {
		o.Logger.Error("no upstream server takes clients", "upstream", up.String(), "clients", n, "within", floodPeriod, "error", last)
	}
	s.unknowable.report = func(n int, last error) {
		o.Logger.Error("cannot look up users", "clients", n, "within", floodPeriod, "error", last)
	}
	s.entering, s.enough = context.WithCancelCause(context.Background())
	return s, register(o.Registerer, newTrafficMetrics(s))
}

// Serve accepts clients until Shutdown or Abort is called. It returns when all of
// its sessions and goroutines have ended: nil after Shutdown or Abort, otherwise
// why it could not go on. It may be called once.
func (s *Server) Serve() error {
	s.mu.Lock()
	stopped := s.stopped
	s.serving = !stopped
	s.mu.Unlock()
	if stopped {
		return nil
	}
	defer close(s.over)
	defer s.loops.stop()
	if err := s.loops.start(); err != nil {
		return err
	}
	defer s.unreachable.stop()
	defer s.unknowable.stop()
	defer s.startSweeping()()
	defer s.startKeeping()()
	defer s.startAsking()()
	defer s.startWatching()()
	defer s.startFollowing()()
	failed := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		s.accepting.Go(func() { failed <- s.accept(l) })
	}
	var err error
	select {
	case <-s.shutdown:
		close(s.resigned)
		s.drain()
	case <-s.abort:
		s.closeListeners()
		s.abortAll()
	case err = <-failed:
		s.closeListeners()
		s.abortAll()
	}
	s.handlers.Wait()
	if s.users != nil {
		s.users.Close()
	}
	return err
}

func (s *Server) accept(l net.Listener) error {
	pause := 5 * time.Millisecond
	for {
		client, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed) || err != nil && s.closing.Load():
			return nil
		case err != nil:
			// Out of file descriptors, most likely: it may pass.
			s.options.Logger.Error("cannot accept a client, retrying", "error", err, "retry", pause)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		s.take(client)
	}
}

// loginsBeside is how many more connections than sessions there may be whose
// clients have not logged in: to be refused, to cancel, to probe.
const loginsBeside = 100

// take serves a client that was accepted.
func (s *Server) take(client net.Conn) {
	p := newPending(s.entering, client)
	if limit := s.limits.arrive(&s.options, p); limit != nil {
		p.cancel(nil)
		s.limited(s.options.Logger, limit, "client", client.RemoteAddr().String())
		refuse(client, limit.say)
		_ = client.Close()
		return
	}
	s.handlers.Add(1)
	go s.handle(client, p)
}

// handle takes a connection over: it becomes a session, which is forgotten when
// it ends, or it is closed.
func (s *Server) handle(raw net.Conn, p *pending) {
	began := time.Now()
	in := &buffer{}
	c, a := s.open(raw, p, in, began)
	if c == nil {
		_ = raw.Close()
		s.handlers.Done()
		return
	}
	defer func() {
		if r := recover(); r != nil {
			c.panicked(r)
			c.hangUp()
		}
	}()
	c.run(began, a, in)
}

// open reads the client's startup packet and finds a server for it. It returns
// nil if no session came of it; the client has been told why, and the connection
// is no longer counted, even if open panics.
func (s *Server) open(raw net.Conn, p *pending, in *buffer, began time.Time) (c *conn, a *arrival) {
	log := s.options.Logger.With("client", raw.RemoteAddr().String())
	defer func() {
		if r := recover(); r != nil {
			s.metrics.trouble.Inc()
			log.Error("a login failed", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	defer func() {
		if c == nil {
			s.limits.leave(p)
		}
	}()
	deadline := began.Add(s.options.StartupTimeout)
	defer p.cancel(nil)
	ctx, cancel := context.WithDeadline(p.ctx, deadline)
	defer cancel()
	_ = raw.SetDeadline(deadline)
	stop := context.AfterFunc(p.ctx, func() { _ = raw.SetReadDeadline(past) })
	defer stop()
	client, startup, err := s.readStartup(ctx, raw, in)
	if err != nil {
		if limit := s.limits.gaveWay(p); limit != nil {
			s.limited(log, limit)
		} else {
			s.metrics.rejected.WithLabelValues("startup").Inc()
		}
		log.Debug("no session began", "error", err)
		return nil, nil
	}
	if startup.Kind == wire.StartupCancel {
		s.limits.waits(p, false)
		if err := s.forwardCancel(ctx, startup.Raw); err != nil {
			log.Warn("cannot forward a cancel request", "error", err)
		}
		_ = client.Close()
		return nil, nil
	}
	defer func() {
		if c == nil {
			_ = client.Close()
		}
	}()
	if !s.admitted(client, p, startup.User(), log) {
		return nil, nil
	}
	if s.awaitLease(ctx, client, in, log) != nil {
		return nil, nil
	}
	_ = raw.SetReadDeadline(deadline)
	if ctx.Err() != nil {
		_ = raw.SetReadDeadline(past) // it may have been set just before
	}
	return s.connect(ctx, client, p, startup, in, began, deadline)
}

// connect connects a client to a server.
func (s *Server) connect(ctx context.Context, client *client, p *pending, startup *wire.Startup, in *buffer, began, deadline time.Time) (c *conn, a *arrival) {
	log := s.options.Logger.With(attrs(startup, client)...)
	e := &entrance{server: s, client: client, pending: p, startup: startup, fromClient: in, deadline: deadline, log: log}
	defer func() {
		if c == nil && e.link != nil {
			_ = e.link.Close()
		}
	}()
	a, err := e.find(ctx)
	if err != nil {
		if limit := s.limits.gaveWay(p); limit != nil {
			s.limited(log, limit)
		}
		logFailedLogin(log, err, time.Since(began))
		return nil, nil
	}
	c = &conn{
		server: s, client: client.Conn, up: a.link.Conn, route: a.link.Route, pending: p, log: log,
		ended: make(chan struct{}),
	}
	c.driver = entering{c}
	if s.options.Refusals != nil {
		c.origin = originOf(startup, client)
	}
	c.core = session.New(s.config, s.databases, startup, (*events)(c))
	if e.proved != nil {
		c.core.Proved()
	}
	s.register(c)
	s.limits.handOver(p, func(limit *limitError) { c.hurry(limit.say) })
	if why := dismissal(ctx); why != nil {
		c.hurry(*why) // whoever ended the others didn't know of this one
	}
	return c, a
}

func (s *Server) register(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	s.metrics.sessions.Inc()
	switch {
	case s.ending:
		c.leaving = &shutdownError
	case !s.leads():
		c.leaving = &leaseLost // who watches the lease looks again only when it changes
	}
}

// forget ends what was counted for a session.
func (s *Server) forget(c *conn) {
	c.mu.Lock()
	s.keys.Delete(c.core.Key()) // also of a core that has failed
	c.mu.Unlock()
	counted := c.counted()
	s.mu.Lock()
	delete(s.conns, c)
	s.past.add(counted)
	s.mu.Unlock()
	s.metrics.sessions.Dec()
	s.limits.leave(c.pending)
	s.handlers.Done()
}

var errDraining = errors.New("draining")

// Ready reports why the server is not ready for clients: it drains, or the
// upstream can't be reached. It returns nil if it is.
func (s *Server) Ready(ctx context.Context) error {
	if s.draining.Load() {
		return errDraining
	}
	if s.options.Ready != nil {
		if err := s.options.Ready(); err != nil {
			return err
		}
	}
	return s.upstream.Reachable(ctx)
}
