package effect

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Database checks fences: a *pgxpool.Pool, or a *pgx.Conn without other use meanwhile. It
// must be the primary of the database in which grants are recorded. Any role will do.
type Database interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

type pgxDatabase struct{ Database }

// begin: a standby, which may not know of the last grant, can't begin a transaction that may
// write.
func (db pgxDatabase) begin(ctx context.Context) (transaction, error) {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return nil, err
	}
	return pgxTransaction{tx}, nil
}

type pgxTransaction struct{ tx pgx.Tx }

func (t pgxTransaction) exec(ctx context.Context, statement string) error {
	_, err := t.tx.Exec(ctx, statement)
	return err
}

// wait: in an idle transaction the server sends only the end of the session. Another message,
// such as a changed setting, ends the pause early, which does no harm.
func (t pgxTransaction) wait(ctx context.Context) error {
	err := t.tx.Conn().PgConn().WaitForNotification(ctx)
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		return nil
	}
	return err
}

func (t pgxTransaction) commit(ctx context.Context) error { return t.tx.Commit(ctx) }

// rollback closes the connection if it fails.
func (t pgxTransaction) rollback(ctx context.Context) { _ = t.tx.Rollback(ctx) }
