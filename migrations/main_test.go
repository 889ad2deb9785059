package migrations_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

var suite = stack.Suite{
	Objects: `CREATE ROLE app LOGIN; CREATE ROLE issuer LOGIN; GRANT wirefence_issuer TO issuer;
		CREATE TABLE public.writes (resource text, token bigint, note text);
		GRANT SELECT, INSERT ON public.writes TO app;
		CREATE FUNCTION public.await_blocked(waiter int) RETURNS void LANGUAGE plpgsql SET statement_timeout = '20s' AS $$
		BEGIN
			WHILE NOT EXISTS (SELECT FROM pg_locks WHERE pid = waiter AND NOT granted) LOOP
				PERFORM pg_sleep(0.002);
			END LOOP;
		END $$`,
	Parallel: 6, // some of which open many connections
	Check:    func() error { return goleak.Find() },
}

func TestMain(m *testing.M) { os.Exit(suite.Run(m)) }

// database is a database of its own on one server.
type database struct {
	*servers.Postgres
	name string
}

var databases atomic.Int64

// onEach runs a test on some versions, each in a migrated database of its own.
func onEach(t *testing.T, test func(t *testing.T, db database)) {
	t.Helper()
	stack.OnEach(t, stack.Versions(), func(t *testing.T, major int) { test(t, withSchema(t, suite.Server(t, major))) })
}

// withSchema creates a database with the schema and what the suite has.
func withSchema(t *testing.T, server *servers.Postgres) database {
	t.Helper()
	name, err := stack.CreateDatabase(t.Context(), server, suite.Objects)
	if err != nil {
		t.Fatal(err)
	}
	stack.DropWith(t, server, name)
	return database{server, name}
}

// create creates a database without the schema.
func create(t *testing.T, server *servers.Postgres, options string) database {
	t.Helper()
	db := database{server, fmt.Sprintf("wf_%d", databases.Add(1))}
	if err := stack.CreateBare(t.Context(), server, db.name, options); err != nil {
		t.Fatal(err)
	}
	stack.DropWith(t, server, db.name)
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
func code(err error) string { return stack.State(err) }

func wantCode(t *testing.T, err error, want string) { t.Helper(); stack.WantState(t, err, want) }

// onEachAlone runs a test on some versions while no other runs, for a slot of logical
// replication waits until all transactions of its server have ended.
func onEachAlone(t *testing.T, test func(t *testing.T, db database)) {
	t.Helper()
	for _, major := range stack.Some(t, stack.Versions()) {
		t.Run(fmt.Sprint(major), func(t *testing.T) { test(t, withSchema(t, suite.Server(t, major))) })
	}
}
