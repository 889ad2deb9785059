package lockclient_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

func TestCarryingTheFence(t *testing.T) {
	ctx := t.Context()
	_, conn := startPostgres(t)
	client := newClient(t, newMemory(), lockclient.Options{})
	lease, err := client.Acquire(ctx, "it's 100%/*--*/")
	if err != nil {
		t.Fatal(err)
	}
	want := lease.Fence().String()
	const show = "SELECT coalesce(pg_catalog.current_setting('wirefence.token', true), '')"

	carried := func(q fence.Querier) (text string) {
		t.Helper()
		if err := q.QueryRow(ctx, show).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.SetLocal(ctx, tx); err != nil || carried(tx) != want {
		t.Errorf("transaction: %v, %q", err, carried(tx))
	}
	if err := tx.Commit(ctx); err != nil || carried(conn) != "" {
		t.Errorf("after the transaction: %v, %q", err, carried(conn))
	}
	if err := lease.SetOn(ctx, conn); err != nil || carried(conn) != want {
		t.Errorf("session: %v, %q", err, carried(conn))
	}
	if err := fence.Check(ctx, conn, fence.Fence{}); err != nil {
		t.Errorf("the database does not read what was set: %v", err)
	}

	for i, statement := range []string{
		"SELECT 1", "SELECT 1;", "SELECT 1 -- one", "SELECT 1; -- one", "SELECT 1 /* one /* two */ */",
		"SELECT $$;--$$", "SELECT '/*'", `SELECT 1 AS "--"`, "-- nothing else", "", "VALUES (1); ;",
	} {
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
			if _, err := conn.Exec(ctx, lease.Annotate(statement), mode); err != nil {
				t.Errorf("statement %d, %v: %v", i, mode, err)
			}
		}
		if got := lease.Annotate(statement); !strings.HasPrefix(got, statement) || !strings.HasSuffix(got, "\n"+lease.Comment()) {
			t.Errorf("annotated %q", got)
		}
	}
	if want := fmt.Sprintf("/*wirefence.token='%s'*/", want); lease.Comment() != want {
		t.Errorf("comment %s", lease.Comment())
	}
}

func TestCarryingTheFenceInDatabaseSQL(t *testing.T) {
	ctx := t.Context()
	url, conn := startPostgres(t)
	lease := acquire(t, newClient(t, newMemory(), lockclient.Options{}))
	db := sql.OpenDB(&connector{stack.Connect(t, url)})
	defer db.Close()
	pgConn := db.Driver().(*connector).conn
	const show = "SELECT coalesce(pg_catalog.current_setting('wirefence.token', true), '')"
	carried := func() (text string) {
		t.Helper()
		if err := pgConn.QueryRow(ctx, show).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	session, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	tx, err := session.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.SetLocalSQL(ctx, tx); err != nil || carried() != "orders=1" {
		t.Errorf("transaction: %v, %q", err, carried())
	}
	if err := tx.Commit(); err != nil || carried() != "" {
		t.Errorf("after the transaction: %v, %q", err, carried())
	}
	if err := lease.SetLocalSQL(ctx, tx); !errors.Is(err, sql.ErrTxDone) || !strings.Contains(err.Error(), "orders") {
		t.Errorf("an ended transaction: %v", err)
	}
	if err := lease.SetOnSQL(ctx, session); err != nil || carried() != "orders=1" {
		t.Errorf("session: %v, %q", err, carried())
	}
	if err := fence.Check(ctx, conn, lease.Fence()); err != nil {
		t.Error(err)
	}
}

func TestAnEndedLeaseSetsNoFence(t *testing.T) {
	ctx := t.Context()
	url, conn := startPostgres(t)
	db := sql.OpenDB(&connector{stack.Connect(t, url)})
	defer db.Close()
	session, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	sqlTx, err := session.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sqlTx.Rollback() }()
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	client := newClient(t, newMemory(), lockclient.Options{})
	lease := acquire(t, client)
	former := lease.Fence()
	release(t, lease)
	for i, err := range []error{lease.SetOn(ctx, conn), lease.SetLocal(ctx, tx), lease.SetOnSQL(ctx, session), lease.SetLocalSQL(ctx, sqlTx)} {
		if !errors.Is(err, lockclient.ErrReleased) || !strings.Contains(err.Error(), "orders") {
			t.Errorf("%d: %v", i, err)
		}
	}
	var carried string
	if err := tx.QueryRow(ctx, "SELECT coalesce(pg_catalog.current_setting('wirefence.token', true), '')").Scan(&carried); err != nil || carried != "" {
		t.Errorf("carries %q, %v", carried, err)
	}
	if lease.Fence().String() != former.String() || lease.Comment() != former.Comment() {
		t.Errorf("its fence is %s, was %s", lease.Fence(), former)
	}
}

// connector is a database/sql driver for the calls of the helpers, on one pgx connection.
type connector struct{ conn *pgx.Conn }

func (c *connector) Connect(context.Context) (driver.Conn, error) { return &session{c.conn, nil}, nil }
func (c *connector) Driver() driver.Driver                        { return c }
func (c *connector) Open(string) (driver.Conn, error)             { return c.Connect(context.Background()) }

type session struct {
	conn *pgx.Conn
	tx   pgx.Tx
}

func (s *session) Prepare(string) (driver.Stmt, error) { return nil, driver.ErrSkip }
func (s *session) Close() error                        { return nil }
func (s *session) Begin() (driver.Tx, error)           { return nil, driver.ErrSkip }
func (s *session) Commit() error                       { return s.tx.Commit(context.Background()) }
func (s *session) Rollback() error                     { return s.tx.Rollback(context.Background()) }

func (s *session) BeginTx(ctx context.Context, _ driver.TxOptions) (tx driver.Tx, err error) {
	s.tx, err = s.conn.Begin(ctx)
	return s, err
}

func (s *session) ExecContext(ctx context.Context, query string, named []driver.NamedValue) (driver.Result, error) {
	args := make([]any, len(named))
	for i, arg := range named {
		args[i] = arg.Value
	}
	tag, err := s.conn.Exec(ctx, query, args...)
	return driver.RowsAffected(tag.RowsAffected()), err
}
