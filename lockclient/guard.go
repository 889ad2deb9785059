package lockclient

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Database is where effects are guarded: a *pgxpool.Pool, or a *pgx.Conn that
// nobody else uses meanwhile. It must be the database in which the resource's
// grants are recorded, or lead there through a proxy or a pooler. No special
// role is needed.
type Database interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Guard runs an effect, something that is done outside of the database, behind a
// check of the lease's fence. The check's transaction stays open until the effect
// has returned, and as long as it is open no later grant of the resource can be
// sealed. A handoff waits for it up to the resource's preempt_after (5 s by
// default), a revocation doesn't; then they end the transaction. So does a
// failure of the server or of the network. The effect's context ends with it, and
// Guard says so.
//
// The effect's context also ends after the time within, and when ctx or the lease
// ends; its cause tells. The effect must heed it. It isn't begun if the lease,
// should it not be renewed, wouldn't last for that time. Choose less than
// preempt_after, and no more than Options.TTL less Margin and RenewEvery, which is
// left as long as renewals succeed. Of long work, such as an upload in parts,
// guard the step that makes it count.
//
// Every error is an *EffectError that is one of these:
//
//   - ErrNotBegun: the effect was not called. The reason is in the chain, such as
//     a refusal (fence.IsStale) or the *EndError of the lease.
//   - ErrEffectFailed: the effect returned an error, which is in the chain, and
//     the fence held until then.
//   - ErrInDoubt: the transaction was lost or could not be ended, so another may
//     have had the resource before the effect was over, whatever it returned.
//
// Without an error, the effect succeeded before any later grant was sealed. But a
// request that the effect no longer waits for, as after a timeout, can arrive
// later; and who is stopped in the midst of an effect can go on as a zombie. Where
// what is written to can refuse, let it: docs/effects.md says how.
//
// Guard takes one connection of the database as long as it runs. It may be called
// several times at once. The first check of a token that was not sealed makes
// other transactions with that token wait until it returns. A panic of the effect
// passes through when the transaction has ended.
func (l *Lease) Guard(ctx context.Context, db Database, within time.Duration, effect func(context.Context) error) error {
	return l.guard(ctx, within, effect, func(ctx context.Context) (gate, error) {
		// A standby would refuse nothing that it doesn't know of yet. It refuses
		// to read and write.
		tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
		if err != nil {
			return nil, fmt.Errorf("begin: %w", err)
		}
		return pgxGate{tx}, checked(tx.Exec(ctx, guardCheckSQL+l.Fence().Comment(), l.Fence().String()))
	})
}

// GuardSQL is Guard for database/sql. That the transaction is lost is noticed
// within half a second, where Guard does at once.
func (l *Lease) GuardSQL(ctx context.Context, db *sql.DB, within time.Duration, effect func(context.Context) error) error {
	return l.guard(ctx, within, effect, func(ctx context.Context) (gate, error) {
		g, err := beginSQL(ctx, db)
		if err != nil {
			return nil, fmt.Errorf("begin: %w", err)
		}
		if _, err = g.tx.ExecContext(ctx, guardTransactionSQL); err != nil {
			return g, fmt.Errorf("begin: %w", err)
		}
		return g, checked(g.tx.ExecContext(ctx, guardCheckSQL+l.Fence().Comment(), l.Fence().String()))
	})
}

// guardCheckSQL goes ahead of the fence in a comment, which a proxy reads. A proxy that lets
// what carries no fence only read would else keep the check from recording the token, and
// so from refusing an older one, or a second use.
//
//go:embed guard_check.sql
var guardCheckSQL string

func checked(_ any, err error) error {
	if err != nil {
		return fmt.Errorf("check fence: %w", err)
	}
	return nil
}

// guard runs the effect behind a gate that is opened for it.
func (l *Lease) guard(ctx context.Context, within time.Duration, effect func(context.Context) error, open func(context.Context) (gate, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })()

	g, err := l.open(ctx, within, open)
	if err != nil {
		return &EffectError{Resource: l.resource, Token: l.token, Outcome: ErrNotBegun, Cause: err}
	}
	return l.outcome(runBehind(ctx, cancel, g, within, effect))
}

// open returns a gate whose fence was checked and that the lease outlasts.
func (l *Lease) open(ctx context.Context, within time.Duration, open func(context.Context) (gate, error)) (gate, error) {
	if err := l.lastsFor(within); err != nil {
		return nil, err
	}
	g, err := open(ctx)
	if err == nil {
		err = l.lastsFor(within) // opening may have taken its time
	}
	switch ended := context.Cause(ctx); {
	case ended == nil || errors.Is(err, ended):
	case err == nil:
		err = ended
	default:
		err = fmt.Errorf("%w: %w", err, ended)
	}
	if err != nil && g != nil {
		g.abandon()
	}
	return g, err
}

// lastsFor returns why the lease isn't sure to last for a time, if it isn't.
func (l *Lease) lastsFor(within time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.client.opts.now()
	if err := l.checkLocked(now); err != nil {
		return err
	}
	switch left := l.left(now); {
	case within <= 0:
		return fmt.Errorf("the time for it, %v, is not positive", within)
	case left < within:
		return fmt.Errorf("the lease lasts for %v if it isn't renewed, the effect may take %v", left.Round(time.Millisecond), within)
	}
	return nil
}

// effected is what came of an effect that was begun.
type effected struct {
	failed error // what it returned
	ended  error // why its context had ended by then, if it had
	lost   error // why the gate wasn't open until then, if it wasn't
}

func (l *Lease) outcome(e effected) error {
	switch {
	case e.lost != nil:
		return &EffectError{Resource: l.resource, Token: l.token, Outcome: ErrInDoubt, Effect: e.failed, Cause: e.lost}
	case e.failed != nil:
		return &EffectError{Resource: l.resource, Token: l.token, Outcome: ErrEffectFailed, Effect: e.failed, Cause: e.ended}
	}
	return nil
}

// runBehind runs the effect and closes the gate, also if the effect panics.
func runBehind(ctx context.Context, cancel context.CancelCauseFunc, g gate, within time.Duration, effect func(context.Context) error) (e effected) {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan error, 1)
	go func() {
		err := g.watch(watching)
		if err != nil {
			err = fmt.Errorf("the transaction that guards the effect was lost: %w", err)
			cancel(err)
		}
		watched <- err
	}()
	defer func() {
		stop()
		e.lost = <-watched
		if err := g.close(); err != nil && e.lost == nil {
			e.lost = fmt.Errorf("the transaction that guards the effect could not be ended: %w", err)
		}
	}()
	ctx, done := context.WithTimeout(ctx, within)
	defer done()
	e.failed = effect(ctx)
	e.ended = context.Cause(ctx)
	return e
}
