package lockclient_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/lockclient"
)

// The context of a lease keeps the statements of an ended one from being sent: nobody else may
// have the resource yet, so the server would accept its fence.
func TestAnEndedLeaseSetsNoFence(t *testing.T) {
	ctx := t.Context()
	url, conn := startPostgres(t)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	sqlTx, err := db.BeginTx(ctx, nil)
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
	if err := lease.Err(); !errors.Is(err, lockclient.ErrReleased) || !strings.Contains(err.Error(), "orders") {
		t.Error(err)
	}
	if lease.Fence().String() != former.String() {
		t.Errorf("its fence is %s, was %s", lease.Fence(), former)
	}
	held := lease.Context()
	_, errTx := tx.Exec(held, former.Transaction())
	_, errSession := conn.Exec(held, former.Session())
	_, errSQLTx := sqlTx.ExecContext(held, former.Transaction())
	_, errSQLSession := db.ExecContext(held, former.Session())
	for i, err := range []error{errTx, errSession, errSQLTx, errSQLSession} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%d: %v", i, err)
		}
	}
	const show = "SELECT coalesce(pg_catalog.current_setting('wirefence.token', true), '')"
	var carried, carriedSQL string
	if err := tx.QueryRow(ctx, show).Scan(&carried); err != nil || carried != "" {
		t.Errorf("carries %q, %v", carried, err)
	}
	if err := sqlTx.QueryRowContext(ctx, show).Scan(&carriedSQL); err != nil || carriedSQL != "" {
		t.Errorf("carries %q by database/sql, %v", carriedSQL, err)
	}
}
