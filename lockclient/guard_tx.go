package lockclient

import (
	"context"
	"database/sql"
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5"
)

// guardTx is an open transaction in which a fence was checked: the lock that the check took
// keeps a handoff from completing while the transaction is open.
type guardTx interface {
	// watch returns an error when the transaction is lost, and nil when ctx ends.
	watch(ctx context.Context) error
	// commit ends it, even if the effect has failed: the check may have recorded the
	// token or its use. After an error the transaction may have been lost at any time.
	commit() error
	// rollback ends it when no effect was begun.
	rollback()
}

// guardEndTimeout bounds the wait for a server after the work is done.
const guardEndTimeout = 5 * time.Second

func guardEndContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), guardEndTimeout)
}

type pgxGuardTx struct{ tx pgx.Tx }

// watch waits for a message of the server. In an idle transaction the server sends only
// the end of the session.
func (g pgxGuardTx) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := g.tx.Conn().PgConn().WaitForNotification(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (g pgxGuardTx) commit() error {
	ctx, cancel := guardEndContext()
	defer cancel()
	return g.tx.Commit(ctx)
}

func (g pgxGuardTx) rollback() {
	ctx, cancel := guardEndContext()
	defer cancel()
	_ = g.tx.Rollback(ctx) // closes the connection if it fails
}

//go:embed guard_transaction.sql
var guardTransactionSQL string

//go:embed guard_ping.sql
var guardPingSQL string

// guardPingInterval is the interval at which a transaction of database/sql is tested: its drivers
// cannot wait for a message of the server.
const guardPingInterval = 500 * time.Millisecond

type sqlGuardTx struct {
	tx  *sql.Tx
	end context.CancelFunc // ends the context of the transaction
}

// beginSQL begins a transaction that outlives ctx: database/sql would roll back when ctx
// ends, while the effect still runs.
func beginSQL(ctx context.Context, db *sql.DB) (sqlGuardTx, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, end)()
	tx, err := db.BeginTx(life, nil)
	if err != nil {
		end()
	}
	return sqlGuardTx{tx, end}, err
}

func (g sqlGuardTx) watch(ctx context.Context) error {
	ticker := time.NewTicker(guardPingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if err := g.ping(); err != nil {
			return err
		}
	}
}

// ping ignores the end of the effect's context: to cancel a query is to lose the
// transaction.
func (g sqlGuardTx) ping() error {
	ctx, cancel := guardEndContext()
	defer cancel()
	_, err := g.tx.ExecContext(ctx, guardPingSQL)
	return err
}

func (g sqlGuardTx) commit() error { return g.finish(g.tx.Commit) }
func (g sqlGuardTx) rollback()     { _ = g.finish(g.tx.Rollback) }

func (g sqlGuardTx) finish(finish func() error) error {
	defer g.end()
	ctx, cancel := guardEndContext()
	defer cancel()
	defer context.AfterFunc(ctx, g.end)()
	return finish()
}
