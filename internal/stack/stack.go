// Package stack starts what an end-to-end test needs: a real PostgreSQL with the
// schema, and a proxy before it.
package stack

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/proxy"
)

// Postgres starts a server of the major version (0: the default), ended with
// the test.
func Postgres(t testing.TB, major int) *servers.Postgres {
	t.Helper()
	return Started(start(t.Context(), servers.PostgresConfig{Major: major})).EndWith(t)
}

// Starting is what a starter returned.
type Starting[S interface{ Close() }] struct {
	server S
	err    error
}

// Started takes what a starter returns, as in stack.Started(servers.StartRedis(ctx)).EndWith(t).
func Started[S interface{ Close() }](server S, err error) Starting[S] {
	return Starting[S]{server, err}
}

// EndWith returns the server, and closes it at the end of the test.
func (s Starting[S]) EndWith(t testing.TB) S {
	t.Helper()
	if s.err != nil {
		t.Fatal(s.err)
	}
	t.Cleanup(s.server.Close)
	return s.server
}

func start(ctx context.Context, cfg servers.PostgresConfig) (*servers.Postgres, error) {
	if err := secureServer(&cfg); err != nil {
		return nil, err
	}
	cfg.Major = Version(cfg.Major)
	return servers.StartPostgres(ctx, cfg)
}

// Proxy starts a proxy before a server, ended with the test, and returns its
// address.
func Proxy(t testing.TB, pg *servers.Postgres, o proxy.Options) string {
	t.Helper()
	if o.Upstream == "" {
		o.Upstream = "postgres://" + pg.Addr() + "/"
	}
	return Serve(t, o).Addr
}

// Serve starts a proxy that is ended with the test, which fails if it has not
// served well.
func Serve(t testing.TB, o proxy.Options) *Running {
	t.Helper()
	r, err := Start(o)
	return r.endWith(t, err)
}

// PlainProxy is Proxy for clients without TLS, also where connections are encrypted.
func PlainProxy(t testing.TB, pg *servers.Postgres) string {
	t.Helper()
	r, err := serve(proxy.Options{Listen: []string{"127.0.0.1:0"}, Upstream: "postgres://" + pg.Addr() + "/"})
	return r.endWith(t, err).Addr
}

func (r *Running) endWith(t testing.TB, err error) *Running {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// Running is a proxy that serves.
type Running struct {
	*proxy.Server
	Addr string // the first at which it listens

	drain context.CancelFunc
	over  chan struct{}
	err   error
}

// Start starts a proxy, by default on a free port. The caller stops it.
func Start(o proxy.Options) (*Running, error) {
	if o.Listen == nil {
		o.Listen = []string{"127.0.0.1:0"}
	}
	secured, err := secureProxy(&o)
	if err != nil {
		return nil, err
	}
	r, err := serve(o)
	if err == nil && secured && r.Addrs()[0].Network() == "tcp" {
		proxies.Store(r.Addr, true)
	}
	return r, err
}

func serve(o proxy.Options) (*Running, error) {
	s, err := proxy.New(o)
	if err != nil {
		return nil, err
	}
	if err := s.Listen(); err != nil {
		return nil, err
	}
	ctx, drain := context.WithCancel(context.Background())
	r := &Running{Server: s, Addr: s.Addrs()[0].String(), drain: drain, over: make(chan struct{})}
	go func() {
		defer close(r.over)
		context.AfterFunc(ctx, func() {
			proxies.Delete(r.Addr) // another one may get the port
			_ = s.Shutdown(context.Background())
		})
		r.err = s.Serve()
	}()
	return r, nil
}

// Drain asks the proxy to end, as SIGTERM does, and doesn't wait.
func (r *Running) Drain() { r.drain() }

// Wait waits for the end of the proxy and returns what Serve returned. It may be
// called more than once.
func (r *Running) Wait() error {
	<-r.over
	return r.err
}

// Stop drains the proxy and waits for its end. It may be called more than once.
func (r *Running) Stop() error {
	r.drain()
	return r.Wait()
}

// URL is the superuser's connection string to a database at an address.
func URL(addr, database string) string {
	mode := "disable"
	if secures(addr) {
		mode = "require"
	}
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=%s", addr, database, mode)
}

// Port is the port of an address.
func Port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// ConnectAs connects by a superuser's URL as another role, which it makes if it isn't there: a
// takeover can't end the superuser's transactions. The connection ends with the test.
func ConnectAs(t testing.TB, address, role string) *pgx.Conn {
	t.Helper()
	Exec(t, address, "DO $$ BEGIN CREATE ROLE "+pgx.Identifier{role}.Sanitize()+" LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
	return Connect(t, strings.Replace(address, "postgres@", url.User(role).String()+"@", 1))
}

// Connect opens a connection, closed with the test.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Exec runs statements on a connection of their own.
func Exec(t testing.TB, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}
