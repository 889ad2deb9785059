// Package stack starts what an end-to-end test needs: a real PostgreSQL with the
// schema, and a proxy before it.
package stack

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// Postgres starts a server of the major version (0: the default), ended with
// the test.
func Postgres(t testing.TB, major int) *servers.Postgres {
	t.Helper()
	pg, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: major})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pg.Close)
	return pg
}

// Database makes a new database with the schema, and returns its name.
func Database(t testing.TB, pg *servers.Postgres) string {
	t.Helper()
	name := fmt.Sprintf("wf_%d", time.Now().UnixNano())
	Exec(t, pg.URL("postgres"), "CREATE DATABASE "+name)
	conn := Connect(t, pg.URL(name))
	if err := migrations.Apply(t.Context(), conn, func(string) {}); err != nil {
		t.Fatal(err)
	}
	return name
}

// Proxy starts a proxy before a server, ended with the test, and returns its
// address.
func Proxy(t testing.TB, pg *servers.Postgres, o proxy.Options) string {
	t.Helper()
	if o.Upstream == "" {
		o.Upstream = "postgres://" + pg.Addr() + "/"
	}
	if o.Listen == nil {
		o.Listen = []string{"127.0.0.1:0"}
	}
	s, err := proxy.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return s.Addrs()[0].String()
}

// URL is the superuser's connection string to a database at an address.
func URL(addr, database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", addr, database)
}

// Port is the port of an address.
func Port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
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
