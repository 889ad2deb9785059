// Package effect keeps the check of a fence open during an effect outside of the database, for
// lockclient.Lease.Guard, `wirefence guard` and the HTTP API.
//
// As long as the check is open, no later grant of its resources can be sealed. A handoff
// waits for it up to preempt_after; then it ends the transaction of the check, and so
// does a revocation.
package effect

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
)

const (
	// pingEvery is the interval of pings, which find a network that drops all packets. pgx
	// reports the end of the transaction at once; drivers of database/sql report it at a ping.
	pingEvery = 500 * time.Millisecond
	// answerTime bounds the server's answers during an effect and at its end.
	answerTime = 5 * time.Second
)

// The timeout in open.sql ends the transaction of a process that is stopped or cut off, so that
// it doesn't block takeovers even if preempt_after is never. It is longer than pingEvery and
// answerTime together.
//
//go:embed open.sql
var openSQL string

//go:embed ping.sql
var pingSQL string

// ErrLost is the error of a check whose transaction was lost before the effect had ended:
// another holder may have had the resource meanwhile.
var ErrLost = errors.New("the check was lost, and another may have had the resource before the effect had ended")

// database begins transactions by pgx or by database/sql.
type database interface {
	// begin may return a transaction with an error; then it is to be rolled back.
	begin(ctx context.Context) (transaction, error)
}

type transaction interface {
	exec(ctx context.Context, statement string) error
	// wait returns the error with which the server ends the transaction, or nil when ctx ends.
	wait(ctx context.Context) error
	commit(ctx context.Context) error
	rollback(ctx context.Context)
}

// Guard is an open check. It is safe for concurrent use.
type Guard struct {
	tx      transaction
	held    context.Context // ends when the transaction is lost, or has ended
	cancel  context.CancelCauseFunc
	stop    context.CancelFunc // of the goroutine that watches
	watched chan error         // gets why the transaction was lost, or nil
	once    sync.Once
	why     error // written by once
}

// Begin checks a fence in a transaction that stays open until End or Discard. The context bounds
// Begin alone. A refusal carries its SQLSTATE; ask fence.IsRefusal.
func Begin(ctx context.Context, db Database, f fence.Fence) (*Guard, error) {
	return keep(check(ctx, pgxDatabase{db}, f))
}

// BeginSQL is Begin for database/sql.
func BeginSQL(ctx context.Context, db *sql.DB, f fence.Fence) (*Guard, error) {
	return keep(check(ctx, sqlDatabase{db}, f))
}

// Once checks a fence once: when it returns, a handoff may already have begun.
func Once(ctx context.Context, db Database, f fence.Fence) error {
	tx, err := check(ctx, pgxDatabase{db}, f)
	if err != nil {
		return err
	}
	return tx.commit(ctx) // the check may have recorded the token, or that it was used
}

// check returns a transaction in which a fence was checked. The lock of the check keeps a
// handoff from completing.
func check(ctx context.Context, db database, f fence.Fence) (transaction, error) {
	tx, err := db.begin(ctx)
	if err == nil {
		err = tx.exec(ctx, openSQL)
	}
	if err != nil {
		err = fmt.Errorf("begin: %w", err)
	} else if err = tx.exec(ctx, f.Check()); err != nil {
		err = fmt.Errorf("check fence: %w", err)
	}
	if err != nil && tx != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
		defer cancel()
		tx.rollback(ctx)
	}
	return tx, err
}

// keep watches the transaction that check has returned, if it has succeeded.
func keep(tx transaction, err error) (*Guard, error) {
	if err != nil {
		return nil, err
	}
	g := &Guard{tx: tx, watched: make(chan error, 1)}
	g.held, g.cancel = context.WithCancelCause(context.Background())
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

// Context ends when the check is lost, with ErrLost as its cause, and at the End.
func (g *Guard) Context() context.Context { return g.held }

// End closes the check, also behind an effect that has failed: the check may have recorded the
// token, or that it was used. Without an error, the fence has held since Begin; otherwise the
// error wraps ErrLost. Further calls return the same.
func (g *Guard) End() error { return g.finish(g.tx.commit) }

// Discard closes a check whose effect was not begun. Nothing stays recorded.
func (g *Guard) Discard() {
	_ = g.finish(func(ctx context.Context) error {
		g.tx.rollback(ctx)
		return nil
	})
}

func (g *Guard) finish(end func(context.Context) error) error {
	g.once.Do(func() {
		g.stop()
		g.why = <-g.watched
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		defer cancel()
		if err := end(ctx); err != nil && g.why == nil {
			g.why = lost(err)
		}
		g.cancel(g.why)
	})
	return g.why
}

// lost returns why the transaction of a check ended.
func lost(err error) error {
	const adminShutdown = "57P01"
	if ended := (*pgconn.PgError)(nil); errors.As(err, &ended) && ended.Code == adminShutdown {
		return fmt.Errorf("%w: a handoff that has waited for preempt_after, a revocation or an administrator has ended its transaction: %w", ErrLost, err)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// watch returns an error when the transaction is lost, and nil when ctx ends.
func (g *Guard) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		pause, cancel := context.WithTimeout(ctx, pingEvery)
		err := g.tx.wait(pause)
		cancel()
		if err == nil && ctx.Err() == nil {
			err = g.ping()
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// ping ends only by answerTime: a cancelled ping would lose the transaction.
func (g *Guard) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	return g.tx.exec(ctx, pingSQL)
}
