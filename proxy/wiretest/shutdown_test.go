package wiretest

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// serving starts a proxy the way a Go program does.
func serving(t *testing.T, pl *place) (s *proxy.Server, served chan error, url string) {
	t.Helper()
	s, err := proxy.New(proxy.Options{Listen: []string{"127.0.0.1:0"}, Upstream: "postgres://" + pl.Addr() + "/", DrainTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	served = make(chan error, 1)
	return s, served, stack.URL(s.Addrs()[0].String(), pl.Name)
}

// Shutdown returns when the last transaction has ended, and so does Serve, with
// nil both.
func TestShutdown(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	s, served, url := serving(t, pl)
	go func() { served <- s.Serve() }()
	conn := stack.Connect(t, url)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	idle := stack.Connect(t, url)
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			if err := s.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := idle.WaitForNotification(t.Context()); err == nil { // it has begun
		t.Error("an idle session goes on")
	}
	if _, err := tx.Exec(t.Context(), "INSERT INTO t VALUES (1, 'in the drain')"); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	calls.Wait()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if rows := pl.rows(t); rows != "1:in the drain" {
		t.Errorf("t holds %s", rows)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("after the end: %v", err)
	}
}

// A context that ends before the transactions do ends them.
func TestShutdownIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	s, served, url := serving(t, pl)
	go func() { served <- s.Serve() }()
	conn := stack.Connect(t, url)
	if _, err := conn.Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (1, 'open')", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown returns %v", err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the session goes on")
	}
	if rows := pl.rows(t); rows != "" {
		t.Errorf("t holds %s", rows)
	}
}

// A server that was shut down before it served closes its listeners and never
// serves.
func TestShutdownBeforeServe(t *testing.T) {
	t.Parallel()
	s, _, _ := serving(t, at(t, 15))
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", s.Addrs()[0].String()); err == nil {
		_ = conn.Close()
		t.Error("it still listens")
	}
	if err := s.Serve(); err != nil {
		t.Error(err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
