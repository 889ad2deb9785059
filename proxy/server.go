package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Server accepts clients and serves each on a connection of its own to the
// upstream. Its methods are safe for concurrent use.
type Server struct {
	options  Options
	upstream *upstream
	config   *session.Config
	catalogs *session.Catalogs
	metrics  *metrics

	listeners []net.Listener
	keys      sync.Map // cancel key → address
	count     atomic.Int64
	draining  atomic.Bool
	handlers  sync.WaitGroup

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// New makes a server. It reports options that can't work.
func New(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	up, err := parseUpstream(o.Upstream)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	return &Server{
		options: o, upstream: up, metrics: m, config: o.sessionConfig(),
		catalogs: session.NewCatalogs(time.Now), conns: map[*conn]struct{}{},
	}, nil
}

// Listen opens the addresses. It must be called once, before Serve.
func (s *Server) Listen() error {
	for _, at := range s.options.Listen {
		l, err := listen(strings.TrimSpace(at))
		if err != nil {
			s.closeListeners()
			return err
		}
		s.listeners = append(s.listeners, l)
	}
	return nil
}

func listen(at string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(at, "unix:")
	if !isUnix {
		return net.Listen("tcp", at)
	}
	if _, err := os.Stat(path); err == nil {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("listen %s: another process accepts connections there", at)
		}
		_ = os.Remove(path) // left over from a process that is gone
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return l, os.Chmod(path, 0o777) // as PostgreSQL's unix_socket_permissions
}

// Addrs are the addresses at which the server listens.
func (s *Server) Addrs() []net.Addr {
	var all []net.Addr
	for _, l := range s.listeners {
		all = append(all, l.Addr())
	}
	return all
}

// Serve accepts clients until ctx is done. Then it drains: for DrainGrace it
// goes on accepting; sessions are ended with 57P01 at the end of their
// transaction; after DrainTimeout the rest is closed. It returns when all is
// over, and nil after a drain.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		go func() { failed <- s.accept(l) }()
	}
	var err error
	select {
	case <-ctx.Done():
		s.drain()
	case err = <-failed:
		s.closeListeners()
		s.abortAll()
	}
	s.handlers.Wait()
	return err
}

func (s *Server) accept(l net.Listener) error {
	pause := 5 * time.Millisecond
	for {
		client, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			// Out of file descriptors, most likely: it may pass.
			s.options.Logger.Error("accepting a client failed", "error", err, "retry", pause)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		s.handlers.Add(1)
		go func() {
			defer s.handlers.Done()
			s.handle(client)
		}()
	}
}

// handle serves one connection, which it closes.
func (s *Server) handle(client net.Conn) {
	defer client.Close()
	log := s.options.Logger.With("client", client.RemoteAddr().String())
	defer func() {
		if r := recover(); r != nil {
			s.metrics.trouble.Inc()
			log.Error("a session failed", "panic", r)
		}
	}()
	deadline := time.Now().Add(s.options.StartupTimeout)
	_ = client.SetDeadline(deadline)
	in := &buffer{}
	startup, err := readStartup(client, in)
	if err != nil {
		s.metrics.rejected.WithLabelValues("startup").Inc()
		log.Debug("no session began", "error", err)
		return
	}
	if startup.Kind == wire.StartupCancel {
		if err := s.forwardCancel(context.Background(), startup.Raw); err != nil {
			log.Warn("a cancel request could not be forwarded", "error", err)
		}
		return
	}
	defer s.count.Add(-1)
	if n := s.count.Add(1); n > int64(s.options.MaxConnections) {
		s.metrics.rejected.WithLabelValues("limit").Inc()
		log.Warn("too many connections", "limit", s.options.MaxConnections)
		refuse(client, wire.Error{Code: "53300", Message: "sorry, too many clients already", Hint: "The limit is WIREFENCE_MAX_CONNECTIONS."})
		return
	}
	s.session(client, startup, in, deadline)
}

// session connects a client to the upstream and serves it.
func (s *Server) session(client net.Conn, startup *wire.Startup, in *buffer, deadline time.Time) {
	log := s.options.Logger.With(attrs(startup, client)...)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	up, addr, err := s.upstream.dial(ctx, s.options.ConnectTimeout)
	cancel()
	if err != nil {
		s.metrics.rejected.WithLabelValues("upstream").Inc()
		log.Error("the upstream can't be reached", "upstream", s.upstream.String(), "error", err)
		refuse(client, wire.Error{Code: "08006", Message: "could not connect to the upstream server", Detail: err.Error(), Hint: "Is PostgreSQL running there, and does WIREFENCE_UPSTREAM name it?"})
		return
	}
	defer up.Close()
	_ = up.SetDeadline(deadline)
	c := &conn{
		server: s, client: client, up: up, addr: addr, log: log,
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	c.core = session.New(s.config, s.catalogs, startup, (*events)(c))
	s.register(c)
	defer s.unregister(c)
	c.run(startup, in)
	s.keys.Delete(c.core.Key())
}

func (s *Server) register(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	s.metrics.sessions.Inc()
	if s.draining.Load() {
		c.draining = true
	}
}

func (s *Server) unregister(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.metrics.sessions.Dec()
}

func (s *Server) each(do func(*conn)) int {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		do(c)
	}
	return len(all)
}

// drain ends all sessions in order.
func (s *Server) drain() {
	log := s.options.Logger
	s.draining.Store(true)
	if s.options.DrainGrace > 0 {
		log.Info("draining: still accepting clients", "for", s.options.DrainGrace)
		time.Sleep(s.options.DrainGrace)
	}
	s.closeListeners()
	left := s.each((*conn).drain)
	log.Info("draining: no new clients; sessions end with their transactions", "sessions", left, "timeout", s.options.DrainTimeout)
	over := make(chan struct{})
	go func() {
		s.handlers.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(s.options.DrainTimeout):
		log.Warn("draining: closing sessions whose transactions did not end", "sessions", s.abortAll())
	}
}

func (s *Server) abortAll() int { return s.each((*conn).abort) }

func (s *Server) closeListeners() {
	for _, l := range s.listeners {
		_ = l.Close()
	}
}

// Ready reports why the server is not ready for clients: it drains, or the
// upstream can't be reached. It returns nil if it is.
func (s *Server) Ready(ctx context.Context) error {
	if s.draining.Load() {
		return errors.New("draining")
	}
	up, _, err := s.upstream.dial(ctx, s.options.ConnectTimeout)
	if err != nil {
		return err
	}
	return up.Close()
}
