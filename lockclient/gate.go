package lockclient

import (
	"context"
	"database/sql"
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5"
)

// gate is an open transaction in which a fence was checked: as long as it is
// open, the lock that the check took keeps a handoff from being completed.
type gate interface {
	// watch returns an error when the transaction is lost, and nil when ctx ends.
	watch(ctx context.Context) error
	// close commits, also where the effect has failed: the check may have recorded
	// the token, and that it was used. An error says that the transaction may have
	// been lost at any time.
	close() error
	// abandon rolls back where no effect was begun.
	abandon()
}

// gatePatience bounds how long a server is waited for by who has done its work
// already.
const gatePatience = 5 * time.Second

func patiently() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), gatePatience)
}

type pgxGate struct{ tx pgx.Tx }

// watch reads. The server says nothing in an idle transaction, except that it
// ends the session.
func (g pgxGate) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := g.tx.Conn().PgConn().WaitForNotification(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (g pgxGate) close() error {
	ctx, cancel := patiently()
	defer cancel()
	return g.tx.Commit(ctx)
}

func (g pgxGate) abandon() {
	ctx, cancel := patiently()
	defer cancel()
	_ = g.tx.Rollback(ctx) // closes the connection if it fails
}

//go:embed guard_transaction.sql
var guardTransactionSQL string

//go:embed guard_ping.sql
var guardPingSQL string

// gatePing is how often a transaction of database/sql is asked whether it is
// there: its drivers can't wait for the server to say something.
const gatePing = 500 * time.Millisecond

type sqlGate struct {
	tx  *sql.Tx
	end context.CancelFunc // of the context that the transaction has for life
}

// beginSQL begins a transaction that outlives ctx: database/sql would roll it
// back when ctx ends, while the effect still runs.
func beginSQL(ctx context.Context, db *sql.DB) (sqlGate, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, end)()
	tx, err := db.BeginTx(life, nil)
	if err != nil {
		end()
	}
	return sqlGate{tx, end}, err
}

func (g sqlGate) watch(ctx context.Context) error {
	ticker := time.NewTicker(gatePing)
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

// ping has no other end than its patience: to cancel a query is to lose the
// transaction.
func (g sqlGate) ping() error {
	ctx, cancel := patiently()
	defer cancel()
	_, err := g.tx.ExecContext(ctx, guardPingSQL)
	return err
}

func (g sqlGate) close() error { return g.finish(g.tx.Commit) }
func (g sqlGate) abandon()     { _ = g.finish(g.tx.Rollback) }

func (g sqlGate) finish(finish func() error) error {
	defer g.end()
	ctx, cancel := patiently()
	defer cancel()
	defer context.AfterFunc(ctx, g.end)()
	return finish()
}
