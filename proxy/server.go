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

	"github.com/wirefence/wirefence/internal/quietlog"
	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
	"github.com/wirefence/wirefence/proxy/internal/users"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Server accepts clients and gives each one its own connection to a server. Its methods
// are safe for concurrent use.
type Server struct {
	options      Options
	upstream     *upstream.Upstream
	tls          *clientTLS       // nil: clients can't use TLS
	users        *users.Directory // nil: servers authenticate clients
	config       *session.Config
	databases    *session.Databases
	holdReleaser *holdReleaser
	metrics      *metrics
	probes       *prometheus.CounterVec

	listeners        []net.Listener
	httpListeners    []net.Listener // served by the caller: ListenAdmin, ListenAPI
	keys             sync.Map       // cancel key → *conn
	limits           limits
	draining         atomic.Bool
	closingListeners atomic.Bool     // accept returns nil from now on
	loginCtx         context.Context // of connections before their session; ends with the cause errDraining
	endLogins        context.CancelCauseFunc
	accepting        sync.WaitGroup
	handlers         sync.WaitGroup

	loops loops

	abort          chan struct{} // closed by Abort
	abortOnce      sync.Once
	leaseAbandoned chan struct{} // closed when clients no longer wait for the lease

	// logLimits are for events that may hit every client at once.
	logLimits struct {
		standbyRefusals, endedSessions, refusedClients, unreachable, failedLookups, unfollowed quietlog.Limiter
	}

	shutdown   chan struct{} // closed by the first Shutdown
	serveEnded chan struct{} // closed when Serve has returned

	mu             sync.Mutex
	serving        bool // Serve was called
	stopped        bool // Shutdown was called
	endingSessions bool // a new session ends at once: the drain's grace is over
	conns          map[*conn]struct{}
	endedTraffic   traffic                 // of sessions that have ended
	leftBehind     map[*upstream.Host]bool // primaries that were left behind; used by handleStanding alone
}

// New returns a server. It validates the options and reads the files that they name. The
// error joins all that is wrong with them, as that of Options.Validate.
func New(o Options) (*Server, error) {
	invalid := o.validate()
	failed := func(err error) {
		o.Logger.Error("cannot use a file that has changed; the last good one stays in use", "error", err)
	}
	up, upstreamErr := o.newUpstream(failed)
	secure, tlsErr := newClientTLS(o.TLS, failed)
	directory, usersErr := o.newDirectory(failed)
	if err := errors.Join(invalid, upstreamErr, tlsErr, usersErr); err != nil {
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
		if err := register(o.Registerer, newStandingMetrics(up)); err != nil {
			return nil, err
		}
	}
	if up.Witnessed() {
		if err := register(o.Registerer, newConfirmedMetric(up)); err != nil {
			return nil, err
		}
	}
	s := &Server{
		options: o, upstream: up, tls: secure, users: directory, metrics: m, probes: probes, config: o.sessionConfig(up.Pooling),
		databases: session.NewDatabases(time.Now), holdReleaser: newHoldReleaser(), conns: map[*conn]struct{}{}, leftBehind: map[*upstream.Host]bool{},
		abort: make(chan struct{}), leaseAbandoned: make(chan struct{}), shutdown: make(chan struct{}), serveEnded: make(chan struct{}),
	}
	s.logLimits.unreachable.Every, s.logLimits.failedLookups.Every = 10*time.Second, 10*time.Second
	s.loginCtx, s.endLogins = context.WithCancelCause(context.Background())
	return s, register(o.Registerer, newTrafficMetrics(s))
}

// Serve accepts clients until Shutdown or Abort is called. It returns after all of its
// sessions and goroutines have ended: nil after Shutdown or Abort, otherwise the error of
// a listener. It may be called once.
func (s *Server) Serve() error {
	s.mu.Lock()
	stopped := s.stopped
	s.serving = !stopped
	s.mu.Unlock()
	if stopped {
		return nil
	}
	defer close(s.serveEnded)
	defer s.loops.stop()
	if err := s.loops.start(); err != nil {
		return err
	}
	defer func() {
		l := &s.logLimits
		for _, limiter := range []*quietlog.Limiter{&l.standbyRefusals, &l.endedSessions, &l.refusedClients, &l.unreachable, &l.failedLookups} {
			limiter.End()
		}
	}()
	defer s.startSweeper()()
	defer s.startHoldReleaser()()
	defer s.startPoll(s.unlocksPoll())()
	if s.config.Hold > 0 {
		defer s.startPoll(s.wantedPoll())()
	}
	defer s.startLeaseWatch()()
	defer s.startTimelineWatch()()
	defer s.startWitness()()
	failed := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		s.accepting.Go(func() { failed <- s.accept(l) })
	}
	var err error
	select {
	case <-s.shutdown:
		close(s.leaseAbandoned)
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
		case errors.Is(err, net.ErrClosed) || err != nil && s.closingListeners.Load():
			return nil
		case err != nil:
			// Most likely there are too few file descriptors, which may pass.
			s.options.Logger.Error("cannot accept a client, retrying", "error", err, "retry", pause)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		s.startHandling(client)
	}
}

// extraLogins is how many more connections than MaxConnections may be pending: to be
// refused, to cancel, to probe.
const extraLogins = 100

// startHandling starts to serve an accepted client, or refuses it at a limit.
func (s *Server) startHandling(client net.Conn) {
	p := newPending(s.loginCtx, client)
	if limit := s.limits.addPending(&s.options, p); limit != nil {
		p.cancel(nil)
		s.recordLimit(s.options.Logger, limit, "client", client.RemoteAddr().String())
		refuse(client, limit.response)
		_ = client.Close()
		return
	}
	s.handlers.Add(1)
	go s.handle(client, p)
}

// handle takes ownership of a connection. It becomes a session, or is closed.
func (s *Server) handle(raw net.Conn, p *pending) {
	began := time.Now()
	in := &buffer{}
	c, cand := s.openSession(raw, p, in, began)
	if c == nil {
		_ = raw.Close()
		s.handlers.Done()
		return
	}
	defer func() {
		if r := recover(); r != nil {
			c.reportPanic(r)
			c.hangUp()
		}
	}()
	c.run(began, cand, in)
}

// openSession reads the client's startup packet and finds a server for it. It returns nil
// if there is no session: the client has been told, and the connection isn't counted any
// more, even after a panic.
func (s *Server) openSession(raw net.Conn, p *pending, in *buffer, began time.Time) (c *conn, cand *candidate) {
	log := s.options.Logger.With("client", raw.RemoteAddr().String())
	defer func() {
		if r := recover(); r != nil {
			s.metrics.protocolErrors.Inc()
			log.Error("a login failed", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	defer func() {
		if c == nil {
			s.limits.remove(p)
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
		if limit := s.limits.evictedBy(p); limit != nil {
			s.recordLimit(log, limit)
		} else {
			s.metrics.rejected.WithLabelValues("startup").Inc()
		}
		log.Debug("no session began", "error", err)
		return nil, nil
	}
	if startup.Kind == wire.StartupCancel {
		s.limits.setAwaitsClient(p, false)
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
	if !s.admitClient(client, p, startup.User(), log) {
		return nil, nil
	}
	if s.awaitLease(ctx, client, in, log) != nil {
		return nil, nil
	}
	_ = raw.SetReadDeadline(deadline)
	if ctx.Err() != nil {
		_ = raw.SetReadDeadline(past) // AfterFunc may have set it just before
	}
	return s.connect(ctx, client, p, startup, in, began, deadline)
}

// connect finds a server for the client and registers the session. On a failure it has
// told the client, and returns nil.
func (s *Server) connect(ctx context.Context, client *client, p *pending, startup *wire.Startup, in *buffer, began, deadline time.Time) (c *conn, cand *candidate) {
	log := s.options.Logger.With(logAttrs(startup, client)...)
	search := &connector{server: s, client: client, pending: p, startup: startup, fromClient: in, deadline: deadline, log: log}
	defer func() {
		if c == nil && search.link != nil {
			_ = search.link.Close()
		}
	}()
	cand, err := search.findServer(ctx)
	if err != nil {
		if limit := s.limits.evictedBy(p); limit != nil {
			s.recordLimit(log, limit)
		}
		logFailedLogin(log, err, time.Since(began))
		return nil, nil
	}
	c = &conn{
		server: s, client: client.Conn, up: cand.link.Conn, route: cand.link.Route, pending: p, log: log,
		ended: make(chan struct{}),
	}
	c.driver = loginDriver{c}
	if s.options.Refusals != nil {
		c.origin = originOf(startup, client)
	}
	c.core = session.New(s.config, s.databases, startup, (*events)(c))
	s.requireLeader(c.core, c.route.Host)
	if search.credentials != nil {
		c.core.MarkAuthenticated()
	}
	s.register(c)
	s.limits.setEvict(p, func(limit *limitError) { c.endLoginPhase(limit.response) })
	if why := loginEndError(ctx); why != nil {
		c.endLoginPhase(*why) // eachConn and evict may have missed this session
	}
	return c, cand
}

// register enters a session, which ends at once if a drain or the lost lease has ended
// the others.
func (s *Server) register(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	s.metrics.sessions.Inc()
	switch {
	case s.endingSessions:
		c.endReason = &shutdownError
	case !s.allowsSessions():
		c.endReason = &leaseLost // startLeaseWatch looks again only when the lease changes
	}
}

// unregister removes a session that has ended.
func (s *Server) unregister(c *conn) {
	c.mu.Lock()
	s.keys.Delete(c.core.Key()) // a core that has failed has its key, too
	c.core.Leave()
	c.mu.Unlock()
	counted := c.countTraffic() // takes c.mu, so before s.mu
	s.mu.Lock()
	delete(s.conns, c)
	s.endedTraffic.add(counted)
	s.mu.Unlock()
	s.metrics.sessions.Dec()
	s.limits.remove(c.pending)
	s.handlers.Done()
}

var errDraining = errors.New("draining")

// Ready returns an error if the server isn't ready for clients: it drains, Options.Ready
// says so, or no upstream server can be reached.
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
