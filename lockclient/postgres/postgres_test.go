package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/postgres"
	"github.com/wirefence/wirefence/lockclient/storetest"
	"github.com/wirefence/wirefence/migrations"
)

// shared is the server of the tests that do not harm it.
var shared *servers.Postgres

func TestMain(m *testing.M) {
	os.Exit(storetest.Main(m, func(ctx context.Context) (err error) {
		shared, err = start(ctx)
		return err
	}, func() { shared.Close() }, func() error { return goleak.Find() }))
}

// start starts a server whose database postgres has the schema, and an issuer.
func start(ctx context.Context) (*servers.Postgres, error) {
	server, err := servers.StartPostgres(ctx, servers.PostgresConfig{})
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err == nil {
		defer conn.Close(ctx)
		err = migrations.Apply(ctx, conn, nil)
	}
	if err == nil {
		_, err = conn.Exec(ctx, "CREATE ROLE issuer LOGIN IN ROLE wirefence_issuer")
	}
	if err != nil {
		server.Close()
		return nil, err
	}
	return server, nil
}

func open(t testing.TB, server *servers.Postgres) *postgres.Store {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), server.URLFor("issuer", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	store := postgres.New(pool)
	t.Cleanup(func() {
		_ = store.Close()
		pool.Close()
	})
	return store
}

func admin(t testing.TB, server *servers.Postgres) *pgx.Conn {
	t.Helper()
	conn := stack.Connect(t, server.URL("postgres"))
	return conn
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) lockclient.Store { return open(t, shared) })
}

func newClient(t *testing.T, server *servers.Postgres, opts lockclient.Options) *lockclient.Client {
	t.Helper()
	client, err := lockclient.New(open(t, server), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return client
}

// A waiter whose pause would outlast the test gets the lease at its release, even if the
// listening connection was lost meanwhile.
func TestAReleaseWakesAWaiter(t *testing.T) {
	conn := admin(t, shared)
	for _, cut := range []bool{false, true} {
		resource := fence.Resource(fmt.Sprint("woken ", cut))
		first := newClient(t, shared, lockclient.Options{TTL: time.Hour})
		second := newClient(t, shared, lockclient.Options{TTL: time.Hour, RetryMin: time.Hour, RetryMax: time.Hour})
		lease, err := first.Acquire(t.Context(), resource)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		won := make(chan error, 1)
		go func() {
			_, err := second.Acquire(ctx, resource)
			won <- err
		}()
		pid := awaitListener(t, conn, 0)
		if cut {
			if _, err := conn.Exec(ctx, "SELECT pg_terminate_backend($1)", pid); err != nil {
				t.Fatal(err)
			}
			awaitListener(t, conn, pid)
		}
		if err := lease.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-won; err != nil {
			t.Errorf("cut %v: %v", cut, err)
		}
		if err := second.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitListener returns the process that listens, once it is not the former one.
func awaitListener(t *testing.T, conn *pgx.Conn, former int) int {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		var pid int
		err := conn.QueryRow(t.Context(), `SELECT pid FROM pg_stat_activity
			WHERE query = 'LISTEN wirefence_released' AND state = 'idle' AND pid <> $1`, former).Scan(&pid)
		if err == nil {
			return pid
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			t.Fatal(err)
		}
	}
	t.Fatal("nobody listens")
	return 0
}

func TestADeadlineEndsACallThatWaits(t *testing.T) {
	store, conn := open(t, shared), admin(t, shared)
	if _, err := store.Acquire(t.Context(), "locked", "me", time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "BEGIN; SELECT FROM wirefence.leases WHERE resource_id = 'locked' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := store.Renew(ctx, "locked", "me", time.Minute)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), shared.Addr()) {
		t.Error(err)
	}
}

func TestErrorsHideThePassword(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://issuer:open-sesame@127.0.0.1:1/x?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	_, err = postgres.New(pool).Acquire(t.Context(), "r", "me", time.Minute)
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "sesame") {
		t.Error(err)
	}
}

// The error for a database without the schema says what to do.
func TestNoSchema(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), shared.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE bare"); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(context.Background(), shared.URL("bare"))
	if err != nil {
		t.Fatal(err)
	}
	store := postgres.New(pool)
	defer func() {
		_ = store.Close()
		pool.Close()
	}()
	_, err = store.Acquire(t.Context(), "orders", "me", time.Minute)
	if err == nil || !strings.Contains(err.Error(), "run `wirefence migrate`") || strings.Contains(err.Error(), "version 9") {
		t.Error(err)
	}
}
