package lockclient

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/effect"
)

// Database is the database in which effects are guarded: a *pgxpool.Pool, or a *pgx.Conn
// that nobody else uses meanwhile. It must be the database in which the grants of the
// resource are recorded, or a proxy or pooler in front of it. No special role is needed.
type Database interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Guard runs an effect, an action outside the database, during a check of the lease's
// fence. The transaction of the check stays open until the effect has returned, and while
// it is open no later grant of the resource can be sealed. A handoff waits for it up to
// the resource's preempt_after (5 s by default), a revocation does not wait; then they
// terminate the transaction. A failure of the server or of the network ends it, too. Then
// the context of the effect ends, and Guard returns ErrInDoubt.
//
// The context of the effect also ends after the time within, and when ctx or the lease
// ends; its cause says why. The effect must respect its context. Guard does not begin the
// effect if the lease could end within that time without a renewal. Choose less than
// preempt_after, and at most Options.TTL less Margin and RenewEvery, which always remains
// while renewals succeed. For long work, such as an upload in parts, guard the step that
// makes it take effect.
//
// Every error is an *EffectError with one of these outcomes:
//
//   - ErrNotBegun: the effect was not called. The reason is in the chain, such as
//     a refusal (fence.IsStale) or the *EndError of the lease.
//   - ErrEffectFailed: the effect returned an error, which is in the chain, and
//     the fence was held until then.
//   - ErrInDoubt: the transaction was lost or could not be ended, so another holder
//     may have had the resource before the effect ended, whatever it returned.
//
// Without an error, the effect succeeded before any later grant was sealed. But a request
// that the effect no longer waits for, as after a timeout, can arrive later; and a
// process that is stopped during an effect can continue as a zombie. If the target of the
// effect can refuse stale tokens, let it: docs/reference/effects.md says how.
//
// Guard uses one connection of the database while it runs. It may be called several times
// at once. The first check of a token that was not sealed makes other transactions with
// that token wait until it returns. Guard passes a panic of the effect on when the
// transaction has ended.
func (l *Lease) Guard(ctx context.Context, db Database, within time.Duration, work func(context.Context) error) error {
	return l.guard(ctx, within, work, func(ctx context.Context) (*effect.Guard, error) { return effect.Begin(ctx, db, l.Fence()) })
}

// GuardSQL is Guard for database/sql. It detects the end of the transaction within half a second,
// which Guard detects at once.
func (l *Lease) GuardSQL(ctx context.Context, db *sql.DB, within time.Duration, work func(context.Context) error) error {
	return l.guard(ctx, within, work, func(ctx context.Context) (*effect.Guard, error) { return effect.BeginSQL(ctx, db, l.Fence()) })
}

// guard has the fence checked, and runs the effect while the check is open.
func (l *Lease) guard(ctx context.Context, within time.Duration, work func(context.Context) error, begin func(context.Context) (*effect.Guard, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })()

	g, err := l.begin(ctx, within, begin)
	if err != nil {
		return &EffectError{Resource: l.resource, Token: l.token, Outcome: ErrNotBegun, Cause: err}
	}
	defer context.AfterFunc(g.Context(), func() { cancel(context.Cause(g.Context())) })()
	return l.outcome(runGuarded(ctx, g, within, work))
}

// begin returns an open check of the fence, if the lease lasts for the time within.
func (l *Lease) begin(ctx context.Context, within time.Duration, begin func(context.Context) (*effect.Guard, error)) (*effect.Guard, error) {
	if err := l.lastsFor(within); err != nil {
		return nil, err
	}
	g, err := begin(ctx)
	if err == nil {
		err = l.lastsFor(within) // time has passed since the first test
	}
	switch ended := context.Cause(ctx); {
	case ended == nil || errors.Is(err, ended):
	case err == nil:
		err = ended
	default:
		err = fmt.Errorf("%w: %w", err, ended)
	}
	if err != nil && g != nil {
		g.Discard()
	}
	return g, err
}

// lastsFor returns an error if the lease could end within this time without a renewal.
func (l *Lease) lastsFor(within time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.opts.now()
	if err := l.checkLocked(now); err != nil {
		return err
	}
	switch left := l.left(now); {
	case within <= 0:
		return fmt.Errorf("the time for the effect, %v, is not positive", within)
	case left < within:
		return fmt.Errorf("the lease lasts for %v without a renewal, the effect may take %v", left.Round(time.Millisecond), within)
	}
	return nil
}

// effectResult is the result of an effect that was begun.
type effectResult struct {
	failed error // the error that it returned
	ended  error // why its context had ended when it returned, if it had
	lost   error // why the check may have been lost until then
}

func (l *Lease) outcome(e effectResult) error {
	switch {
	case e.lost != nil:
		return &EffectError{Resource: l.resource, Token: l.token, Outcome: ErrInDoubt, Effect: e.failed, Cause: e.lost}
	case e.failed != nil:
		return &EffectError{Resource: l.resource, Token: l.token, Outcome: ErrEffectFailed, Effect: e.failed, Cause: e.ended}
	}
	return nil
}

// runGuarded runs the effect and ends the check, even if the effect panics.
func runGuarded(ctx context.Context, g *effect.Guard, within time.Duration, work func(context.Context) error) (e effectResult) {
	defer func() { e.lost = g.End() }()
	ctx, done := context.WithTimeout(ctx, within)
	defer done()
	e.failed = work(ctx)
	e.ended = context.Cause(ctx)
	return e
}
