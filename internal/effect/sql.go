package effect

import (
	"context"
	"database/sql"
	_ "embed"
)

//go:embed begin.sql
var beginSQL string

type sqlDatabase struct{ *sql.DB }

func (db sqlDatabase) begin(ctx context.Context) (transaction, error) {
	// The transaction outlives ctx: database/sql would roll back when that ends, while the
	// effect still runs.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	tx, err := db.BeginTx(life, nil)
	stop()
	if err != nil {
		end()
		return nil, err
	}
	t := sqlTransaction{tx, end}
	return t, t.exec(ctx, beginSQL)
}

type sqlTransaction struct {
	tx  *sql.Tx
	end context.CancelFunc // ends the context of the transaction
}

func (t sqlTransaction) exec(ctx context.Context, statement string) error {
	return leave(ctx, func() error {
		_, err := t.tx.ExecContext(ctx, statement)
		return err
	})
}

// wait: a driver of database/sql can't wait for a message of the server.
func (sqlTransaction) wait(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (t sqlTransaction) commit(ctx context.Context) error {
	defer t.end()
	return leave(ctx, t.tx.Commit)
}

func (t sqlTransaction) rollback(ctx context.Context) {
	defer t.end()
	_ = leave(ctx, t.tx.Rollback)
}

// leave calls do and returns its error, or ctx's as soon as that has ended. lib/pq waits for the
// server's answer whatever becomes of the context; do then goes on until the system gives the
// connection up.
func leave(ctx context.Context, do func() error) error {
	over := make(chan error, 1)
	go func() { over <- do() }()
	select {
	case err := <-over:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
