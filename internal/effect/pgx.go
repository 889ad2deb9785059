package effect

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

// Database checks fences: a *pgxpool.Pool, or a *pgx.Conn without other use meanwhile. It
// must be the primary of the database in which grants are recorded. Any role will do.
type Database interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// check returns a transaction in which a fence was checked. A standby, which may not know
// of the last grant, can't begin one that may write.
func check(ctx context.Context, db Database, f fence.Fence) (pgx.Tx, error) {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if _, err = tx.Exec(ctx, openSQL); err == nil {
		err = fence.Check(ctx, tx, f)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
		defer cancel()
		pgxTransaction{tx}.rollback(ctx)
		return nil, err
	}
	return tx, nil
}

type pgxTransaction struct{ tx pgx.Tx }

// wait: in an idle transaction the server sends only the end of the session. Another message,
// such as a changed setting, ends the pause early, which does no harm.
func (t pgxTransaction) wait(ctx context.Context) error {
	err := t.tx.Conn().PgConn().WaitForNotification(ctx)
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		return nil
	}
	return err
}

func (t pgxTransaction) ping(ctx context.Context) error {
	_, err := t.tx.Exec(ctx, pingSQL)
	return err
}

func (t pgxTransaction) commit(ctx context.Context) error { return t.tx.Commit(ctx) }

// rollback closes the connection if it fails.
func (t pgxTransaction) rollback(ctx context.Context) { _ = t.tx.Rollback(ctx) }
