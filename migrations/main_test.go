package migrations_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// template is a migrated database that tests copy theirs from.
const template = "wf_template"

var clusters = map[int]*servers.Postgres{}

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	ctx := context.Background()
	flag.Parse()
	// These tests wait for servers more than they compute.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed error
	)
	for _, major := range stack.Versions() {
		wg.Go(func() {
			server, err := startMigrated(ctx, major)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			clusters[major] = server
		})
	}
	wg.Wait()
	status := 1
	if failed == nil {
		status = m.Run()
	}
	for _, server := range clusters {
		server.Close()
	}
	if leaked := goleak.Find(); failed == nil && leaked != nil {
		failed = leaked
	}
	if failed != nil {
		fmt.Fprintln(os.Stderr, failed)
		return 1
	}
	return status
}

func startMigrated(ctx context.Context, major int) (*servers.Postgres, error) {
	// Six tests at once, some of which open many connections.
	server, err := servers.StartPostgres(ctx, servers.PostgresConfig{Major: major, Settings: map[string]string{"max_connections": "200"}})
	if err != nil {
		return nil, err
	}
	err = func() error {
		admin, err := pgx.Connect(ctx, server.URL("postgres"))
		if err != nil {
			return err
		}
		defer admin.Close(ctx)
		if _, err := admin.Exec(ctx, "CREATE DATABASE "+template); err != nil {
			return err
		}
		if _, err := admin.Exec(ctx, "CREATE ROLE app LOGIN"); err != nil {
			return err
		}
		conn, err := pgx.Connect(ctx, server.URL(template))
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		if err := migrations.Apply(ctx, conn, nil); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, `CREATE ROLE issuer LOGIN; GRANT wirefence_issuer TO issuer;
			CREATE TABLE public.writes (resource text, token bigint, note text);
			GRANT SELECT, INSERT ON public.writes TO app;
			CREATE FUNCTION public.await_blocked(waiter int) RETURNS void LANGUAGE plpgsql SET statement_timeout = '20s' AS $$
			BEGIN
				WHILE NOT EXISTS (SELECT FROM pg_locks WHERE pid = waiter AND NOT granted) LOOP
					PERFORM pg_sleep(0.002);
				END LOOP;
			END $$`)
		return err
	}()
	if err != nil {
		server.Close()
		return nil, fmt.Errorf("PostgreSQL %d: %w", major, err)
	}
	return server, nil
}

// database is a migrated database of its own on one server.
type database struct {
	*servers.Postgres
	name string
}

var databases atomic.Int64

// onEach runs a test on some versions, each in a database of its own.
func onEach(t *testing.T, test func(t *testing.T, db database)) {
	t.Helper()
	stack.OnEach(t, versions(), func(t *testing.T, major int) { test(t, create(t, clusters[major], "TEMPLATE "+template)) })
}

func versions() []int { return slices.Sorted(maps.Keys(clusters)) }

// onEachAlone runs a test on some versions while no other runs, for a slot of logical
// replication waits until all transactions of its server have ended.
func onEachAlone(t *testing.T, test func(t *testing.T, db database)) {
	t.Helper()
	for _, major := range stack.Some(t, versions()) {
		t.Run(fmt.Sprint(major), func(t *testing.T) { test(t, create(t, clusters[major], "TEMPLATE "+template)) })
	}
}

// create creates a database, which is dropped at the end of the test.
func create(t *testing.T, server *servers.Postgres, options string) database {
	t.Helper()
	db := database{server, fmt.Sprintf("wf_%d", databases.Add(1))}
	admin := db.connectTo(t, "postgres", "postgres")
	mustExec(t, admin, "CREATE DATABASE "+db.name+" "+options)
	// The servers' files are in memory, and five servers come to some hundreds of databases
	// each. One that a test has stopped, or that keeps a slot there, keeps its database.
	t.Cleanup(func() { _ = exec(admin, "DROP DATABASE "+db.name+" WITH (FORCE)") })
	return db
}

// connectTo connects until the end of the test.
func (db database) connectTo(t *testing.T, role, name string) *pgx.Conn {
	t.Helper()
	conn := db.dial(t, role, name)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (db database) dial(t *testing.T, role, name string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.URLFor(url.PathEscape(role), name))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// as connects as a role; the connection ends with the test.
func (db database) as(t *testing.T, role string) *pgx.Conn {
	t.Helper()
	return db.connectTo(t, role, db.name)
}

func (db database) app(t *testing.T) *pgx.Conn   { t.Helper(); return db.as(t, "app") }
func (db database) admin(t *testing.T) *pgx.Conn { t.Helper(); return db.as(t, "postgres") }

// exec fails if a server does not answer within the longest wait of any test.
func exec(conn *pgx.Conn, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	_, err := conn.Exec(ctx, sql, args...)
	return err
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if err := exec(conn, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// start runs a statement in the background and returns when the server has it
// waiting for a lock. The channel gives its error. It is ended with the test.
func (db database) start(t *testing.T, conn *pgx.Conn, sql string, args ...any) <-chan error {
	t.Helper()
	done, ended := make(chan error, 1), make(chan struct{})
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	pid := conn.PgConn().PID()
	go func() {
		defer close(ended)
		_, err := conn.Exec(ctx, sql, args...)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	mustExec(t, db.admin(t), "SELECT public.await_blocked($1)", pid)
	return done
}

// seal records a grant as the issuer does.
func (db database) seal(t *testing.T, resource string, token int64) {
	t.Helper()
	if !lookAs[bool](t, db, "issuer", "SELECT wirefence.seal($1, $2, 'worker-b')", resource, token) {
		t.Fatalf("token %d of %s was not sealed", token, resource)
	}
}

// lastToken returns last_token of the row.
func (db database) lastToken(t *testing.T, resource string) int64 {
	t.Helper()
	return look[int64](t, db, "SELECT last_token FROM wirefence.resource_locks WHERE resource_id = $1", resource)
}

// value runs a query of one row and one column.
func value[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var v T
	if err := conn.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// look is value for the superuser, over a connection that ends with the query: tests look in
// loops, and the server has 200 connections for six of them.
func look[T any](t *testing.T, db database, sql string, args ...any) T {
	t.Helper()
	return lookAs[T](t, db, "postgres", sql, args...)
}

// lookAs is look for another role.
func lookAs[T any](t *testing.T, db database, role, sql string, args ...any) T {
	t.Helper()
	conn := db.dial(t, role, db.name)
	defer func() { _ = conn.Close(context.Background()) }()
	return value[T](t, conn, sql, args...)
}

// code returns the SQLSTATE of an error, "" for none.
func code(err error) string {
	if err == nil {
		return ""
	}
	if pgErr, ok := err.(*pgconn.PgError); ok {
		return pgErr.Code
	}
	return err.Error()
}

func wantCode(t *testing.T, err error, want string) {
	t.Helper()
	if got := code(err); got != want {
		t.Errorf("got %q, want SQLSTATE %q (%v)", got, want, err)
	}
}
