package proxy

import (
	"context"
	"errors"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
	"github.com/wirefence/wirefence/proxy/internal/users"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Server accepts clients and serves each on a connection of its own to the
// upstream. Its methods are safe for concurrent use.
type Server struct {
	options  Options
	upstream *upstream.Upstream
	tls      *clientTLS       // nil: clients can't use TLS
	users    *users.Directory // nil: servers authenticate clients
	config   *session.Config
	catalogs *session.Catalogs
	metrics  *metrics

	listeners []net.Listener
	admin     net.Listener // nil if there is none
	keys      sync.Map     // cancel key → upstream.Route
	arriving  atomic.Int64 // connections that have sent no startup packet yet, or ask for a cancellation
	limits    limits
	draining  atomic.Bool
	closing   atomic.Bool     // the listeners, that is
	entering  context.Context // what comes before a session; ends with errDraining
	enough    context.CancelCauseFunc
	accepting sync.WaitGroup
	handlers  sync.WaitGroup

	loops []*loop
	next  atomic.Uint32 // whose turn it is among the loops

	abort     chan struct{} // closed by Abort
	abortOnce sync.Once
	resigned  chan struct{} // closed when no lease is waited for any more

	standbyRefusals standbyLog

	mu     sync.Mutex
	ending bool // the grace of a drain is over
	conns  map[*conn]struct{}
}

// New makes a server. It reports options that can't work.
func New(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	failed := func(err error) {
		o.Logger.Error("a file that has changed can't be used; the last good one counts", "error", err)
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
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	s := &Server{
		options: o, upstream: up, tls: secure, users: directory, metrics: m, config: o.sessionConfig(up.Pooling),
		catalogs: session.NewCatalogs(time.Now), conns: map[*conn]struct{}{},
		abort: make(chan struct{}), resigned: make(chan struct{}),
	}
	s.entering, s.enough = context.WithCancelCause(context.Background())
	return s, nil
}

// Serve accepts clients until ctx is done. Then it drains: for DrainGrace it
// goes on accepting; sessions are ended with 57P01 at the end of their
// transaction; after DrainTimeout, or after Abort, the rest is closed. It returns
// when all is over, and nil after a drain.
func (s *Server) Serve(ctx context.Context) error {
	if err := s.startLoops(); err != nil {
		return err
	}
	defer func() {
		for _, l := range s.loops {
			l.stop()
		}
	}()
	defer s.startSweeping()()
	defer s.startWatching()()
	failed := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		s.accepting.Go(func() { failed <- s.accept(l) })
	}
	var err error
	select {
	case <-ctx.Done():
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
			s.options.Logger.Error("accepting a client failed", "error", err, "retry", pause)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		s.take(client)
	}
}

// arrivalsBeside is how many more connections than sessions may be on their way
// in: to be refused, to cancel, to probe.
const arrivalsBeside = 100

// take serves a client that was accepted. Who has not said yet what it wants
// counts apart from sessions, so that silence on many connections keeps nobody
// out of those, nor holds many more of them than there may be sessions.
func (s *Server) take(client net.Conn) {
	if s.arriving.Add(1) > int64(s.options.MaxConnections+arrivalsBeside) {
		s.arriving.Add(-1)
		s.metrics.rejected.WithLabelValues("arriving").Inc()
		if left, ok := s.limits.log(time.Now()); ok {
			s.options.Logger.Warn("too many connections that have sent no startup packet yet", "limit", s.options.MaxConnections+arrivalsBeside, "left_out", left)
		}
		_ = client.Close()
		return
	}
	s.handlers.Add(1)
	go s.handle(client)
}

// startLoops starts as many loops as threads of Go may run, where the system
// has them.
func (s *Server) startLoops() error {
	for range (runtime.GOMAXPROCS(0) + 1) / 2 {
		l, err := newLoop()
		if err != nil {
			return err
		}
		if l != nil {
			s.loops = append(s.loops, l)
		}
	}
	return nil
}

// nextLoop returns the loop that carries the next session, or nil.
func (s *Server) nextLoop() *loop {
	if len(s.loops) == 0 {
		return nil
	}
	return s.loops[int(s.next.Add(1))%len(s.loops)]
}

// handle takes a connection over: it becomes a session, which is forgotten when
// it ends, or it is closed.
func (s *Server) handle(raw net.Conn) {
	began := time.Now()
	in := &buffer{}
	c, a := s.open(raw, in, began)
	if c == nil {
		_ = raw.Close()
		s.handlers.Done()
		return
	}
	defer func() {
		if r := recover(); r != nil {
			c.panicked(r)
			c.finish()
		}
	}()
	c.run(began, a, in)
}

// open reads the client's startup packet and finds a server for it. It returns
// nil if no session came of it; the client has been told why. What it counts it
// counts down again, even if it panics.
func (s *Server) open(raw net.Conn, in *buffer, began time.Time) (c *conn, a *arrival) {
	log := s.options.Logger.With("client", raw.RemoteAddr().String())
	defer func() {
		if r := recover(); r != nil {
			s.metrics.trouble.Inc()
			log.Error("a login failed", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	deadline := began.Add(s.options.StartupTimeout)
	ctx, cancel := context.WithDeadline(s.entering, deadline)
	defer cancel()
	_ = raw.SetDeadline(deadline)
	stop := context.AfterFunc(s.entering, func() { _ = raw.SetReadDeadline(past) })
	defer stop()
	arrived := sync.OnceFunc(func() { s.arriving.Add(-1) })
	defer arrived()
	client, startup, err := s.readStartup(raw, in)
	if err != nil {
		s.metrics.rejected.WithLabelValues("startup").Inc()
		log.Debug("no session began", "error", err)
		return nil, nil
	}
	if startup.Kind == wire.StartupCancel {
		if err := s.forwardCancel(ctx, startup.Raw); err != nil {
			log.Warn("a cancel request could not be forwarded", "error", err)
		}
		_ = client.Close()
		return nil, nil
	}
	arrived()
	if !s.admitted(client, startup.User(), log) {
		return nil, nil
	}
	defer func() {
		if c == nil {
			_ = client.Close()
			s.limits.leave(startup.User())
		}
	}()
	if s.awaitLease(ctx, client, in, log) != nil {
		return nil, nil
	}
	_ = raw.SetReadDeadline(deadline)
	if ctx.Err() != nil {
		_ = raw.SetReadDeadline(past) // it may have been set just before
	}
	return s.connect(ctx, client, startup, in, deadline)
}

// connect connects a client to a server.
func (s *Server) connect(ctx context.Context, client *client, startup *wire.Startup, in *buffer, deadline time.Time) (c *conn, a *arrival) {
	log := s.options.Logger.With(attrs(startup, client)...)
	e := &entrance{server: s, client: client, startup: startup, fromClient: in, deadline: deadline, log: log}
	defer func() {
		if c == nil && e.link != nil {
			_ = e.link.Close()
		}
	}()
	a, err := e.find(ctx)
	if err != nil {
		log.Info("no session began", "error", err)
		return nil, nil
	}
	c = &conn{
		server: s, client: client.Conn, up: a.link.Conn, route: a.link.Route, user: startup.User(), log: log,
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	if s.options.Refusals != nil {
		c.origin = originOf(startup, client)
	}
	c.core = session.New(s.config, s.catalogs, startup, (*events)(c))
	if e.proved != nil {
		c.core.Proved()
	}
	s.register(c)
	if ctx.Err() != nil {
		c.hurry() // who hurried all others didn't know of this one
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
	s.keys.Delete(c.core.Key())
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.metrics.sessions.Dec()
	s.limits.leave(c.user)
	s.handlers.Done()
}

var errDraining = errors.New("draining")

// Ready reports why the server is not ready for clients: it drains, or the
// upstream can't be reached. It returns nil if it is.
func (s *Server) Ready(ctx context.Context) error {
	if s.draining.Load() {
		return errDraining
	}
	return s.upstream.Reachable(ctx)
}
