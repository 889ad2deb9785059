// Package effect keeps the check of a fence open during an effect outside of the database:
// that of the command of `wirefence guard`, or of a client of the HTTP API. In a Go program
// that has the lease, lockclient.Lease.Guard does the same.
//
// As long as the check is open, no later grant of its resources can be sealed. A handoff
// waits for it up to preempt_after; then it ends the transaction of the check, and so
// does a revocation.
package effect

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
)

// Database checks fences: a *pgxpool.Pool, or a *pgx.Conn without other use meanwhile. It
// must be the primary of the database in which grants are recorded. Any role will do.
type Database interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

const (
	// pingEvery is how often the server is pinged. Guard notices at once that the server
	// ends the transaction; the ping finds a network that drops all packets.
	pingEvery = time.Second
	// patience bounds how long the server may take to answer while an effect runs, and
	// when it has ended.
	patience = 5 * time.Second
)

// The session's own bound, in open.sql, ends the transaction of a process that is stopped
// or cut off, so that it doesn't block takeovers where preempt_after is never. It is longer
// than pingEvery and patience together.
//
//go:embed open.sql
var openSQL string

//go:embed ping.sql
var pingSQL string

// ErrLost says that the transaction of a check was lost before its effect had ended:
// another may have had the resource meanwhile.
var ErrLost = errors.New("the check was lost, and another may have had the resource before the effect had ended")

// Guard is a check that is open. It is safe for concurrent use.
type Guard struct {
	tx      pgx.Tx
	held    context.Context // ends when the transaction is lost, or has ended
	cancel  context.CancelCauseFunc
	stop    context.CancelFunc // of the goroutine that watches
	watched chan error         // gets why the transaction was lost, or nil
	end     func() error
}

// Begin checks a fence in a transaction that stays open until End. The context is for the
// beginning alone. A refusal carries its SQLSTATE; ask fence.IsRefusal.
func Begin(ctx context.Context, db Database, f fence.Fence) (*Guard, error) {
	tx, err := check(ctx, db, f)
	if err != nil {
		return nil, err
	}
	g := &Guard{tx: tx, watched: make(chan error, 1)}
	g.held, g.cancel = context.WithCancelCause(context.Background())
	g.end = sync.OnceValue(g.commit)
	watching, stop := context.WithCancel(context.Background())
	g.stop = stop
	go func() {
		err := g.watch(watching)
		if err != nil {
			err = lost(err)
			g.cancel(err)
		}
		g.watched <- err
	}()
	return g, nil
}

// Once checks a fence for this moment only: when it returns, a handoff may have begun.
func Once(ctx context.Context, db Database, f fence.Fence) error {
	tx, err := check(ctx, db, f)
	if err != nil {
		return err
	}
	return tx.Commit(ctx) // the check may have recorded the token, or that it was used
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_ = tx.Rollback(ctx) // closes the connection if it fails
		return nil, err
	}
	return tx, nil
}

// Context ends when the check is lost, with ErrLost as its cause, and at the End.
func (g *Guard) Context() context.Context { return g.held }

// End closes the check. Without an error, the fence has held since Begin; otherwise the
// error wraps ErrLost. Further calls return the same.
func (g *Guard) End() error { return g.end() }

func (g *Guard) commit() error {
	g.stop()
	why := <-g.watched
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := g.tx.Commit(ctx); err != nil && why == nil {
		why = lost(err)
	}
	g.cancel(why)
	return why
}

// lost says why the transaction of a check ended, if the server tells.
func lost(err error) error {
	const adminShutdown = "57P01"
	if ended := (*pgconn.PgError)(nil); errors.As(err, &ended) && ended.Code == adminShutdown {
		return fmt.Errorf("%w: a handoff that has waited for preempt_after, a revocation or an administrator has ended its transaction: %w", ErrLost, err)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// watch returns an error when the transaction is lost, and nil when ctx ends. In an idle
// transaction the server says nothing, except that it ends the session.
func (g *Guard) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		err := g.listen(ctx)
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = g.ping()
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (g *Guard) listen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingEvery)
	defer cancel()
	return g.tx.Conn().PgConn().WaitForNotification(ctx)
}

// ping ends only by its own patience: cancelling it would lose the transaction.
func (g *Guard) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := g.tx.Exec(ctx, pingSQL)
	return err
}
