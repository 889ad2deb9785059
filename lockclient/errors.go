package lockclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Errors of an acquire, besides those of the context and of the store.
var (
	// ErrNotAcquired says that another holder has the lease. The error is a *HeldError.
	ErrNotAcquired = errors.New("lease not acquired")
	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("lock client is closed")
	// ErrCounter says that the store cannot count a further token: the counter has
	// reached 9223372036854775807 or is not a number.
	ErrCounter error = &PermanentError{errors.New("token counter can't be increased")}
)

// PermanentError marks an error that every further try gets too, until somebody changes the
// set-up: a wrong password, a missing right. A store wraps in it what its server refuses for
// such a reason.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }

func (e *PermanentError) Unwrap() error { return e.Err }

// Permanent reports whether an error of a store doesn't pass by waiting.
func Permanent(err error) bool { return errors.As(err, new(*PermanentError)) }

// ErrUnsealed is the error of New for a client whose grants nothing would seal.
var ErrUnsealed = errors.New("nothing seals the grants of this store, so a former holder could still commit: " +
	"set Options.Sealers, or Options.Unsealed to permit that")

// ErrTransient is the error of a client with Options.KeepFor on a store that is a Transient.
var ErrTransient = errors.New("leases in this store end with the process that acquired them, so none can be kept beyond it")

// Reasons for which a lease ends. The cause of Lease.Context is an *EndError with
// exactly one of them.
var (
	// ErrExpired says that the local deadline passed without a renewal: the process was
	// stopped or got no CPU time, or its machine was suspended.
	ErrExpired = errors.New("lease expired")
	// ErrLost says that the store no longer has the lease or has granted it to another
	// holder, or that PostgreSQL has recorded another holder's token.
	ErrLost = errors.New("lease lost")
	// ErrRevoked says that an operator has locked the holder out, by `wirefence revoke`
	// or wirefence.revoke.
	ErrRevoked = errors.New("lease revoked")
	// ErrFailover says that the database was promoted or restored, and the grant was
	// lost or is no longer accepted. A new acquire gets a valid token.
	ErrFailover = errors.New("lease ended by a failover of the database")
	// ErrReleased says that Release or Client.Close was called.
	ErrReleased = errors.New("lease released")
	// ErrKept says that Lease.Keep was called, and left the lease taken.
	ErrKept = errors.New("lease kept")
	// ErrDetached says that Lease.Detach was called.
	ErrDetached = errors.New("lease detached")
	// ErrMaxHold says that the lease reached Options.MaxHold.
	ErrMaxHold = errors.New("lease reached its maximum hold")
	// ErrUnreachable says that the local deadline passed while renewals failed or got no
	// answer. The store's last error is in the chain, too.
	ErrUnreachable = errors.New("lease store unreachable until the lease expired")
)

// Outcomes of a guarded effect that may not have succeeded. The error of Lease.Guard
// is an *EffectError with exactly one of them.
var (
	// ErrNotBegun says that the effect was not begun.
	ErrNotBegun = errors.New("effect not begun")
	// ErrEffectFailed says that the effect returned an error, and the fence was held
	// until then.
	ErrEffectFailed = errors.New("effect failed")
	// ErrInDoubt says that the effect was begun, and that the fence may not have been
	// held until it returned: another holder may have had the resource before.
	ErrInDoubt = errors.New("effect in doubt")
)

// HeldError says which holder has a lease that was not acquired.
type HeldError struct {
	Resource fence.Resource
	// Holder is the other holder, as its Lease.Holder, which may be a former one by the
	// time this is read.
	Holder string
	// Remaining is how long the other holder's lease lasts without a renewal; 0 if
	// unknown.
	Remaining time.Duration
}

func (e *HeldError) Error() string {
	text := fmt.Sprintf("lease of %q not acquired: held by %s", e.Resource, e.Holder)
	if e.Remaining > 0 {
		text += fmt.Sprintf(" for %v more", e.Remaining)
	}
	return text
}

// Is reports that a HeldError is an ErrNotAcquired.
func (e *HeldError) Is(target error) bool { return target == ErrNotAcquired }

// SealError says that a lease was won but could not be sealed, and was given back.
type SealError struct {
	Resource fence.Resource
	Token    fence.Token
	Err      error
}

func (e *SealError) Error() string {
	return fmt.Sprintf("lease of %q given back: token %d not sealed: %v", e.Resource, e.Token, e.Err)
}

func (e *SealError) Unwrap() error { return e.Err }

// EndError says why a lease ended.
type EndError struct {
	Resource fence.Resource
	Token    fence.Token
	// Reason is one of ErrExpired, ErrLost, ErrRevoked, ErrFailover, ErrReleased,
	// ErrKept, ErrDetached, ErrMaxHold and ErrUnreachable.
	Reason error
	// Last is the store's last error, for ErrUnreachable.
	Last error
	// Successor is the grant that was recorded over this one, for ErrLost and
	// ErrRevoked. Its token is 0 if it is unknown; after a revocation it has no holder.
	Successor fence.Grant
}

func (e *EndError) Error() string {
	text := fmt.Sprintf("%v: %q, token %d", e.Reason, e.Resource, e.Token)
	switch next := e.Successor; {
	case next.Holder != "":
		text += fmt.Sprintf(": token %d was granted to %s", next.Token, next.Holder)
	case next.Token > 0:
		text += fmt.Sprintf(": the last token is %d", next.Token)
	}
	if e.Last != nil {
		text += ": " + e.Last.Error()
	}
	return text
}

func (e *EndError) Unwrap() []error {
	if e.Last == nil {
		return []error{e.Reason}
	}
	return []error{e.Reason, e.Last}
}

// lockedOut reports that the store may still have the lease, although its token is no
// longer accepted.
func (e *EndError) lockedOut() bool { return e.Reason == ErrRevoked || e.Reason == ErrFailover }

// EffectError says whether a guarded effect was begun, and how it ended.
type EffectError struct {
	Resource fence.Resource
	Token    fence.Token
	// Outcome is one of ErrNotBegun, ErrEffectFailed and ErrInDoubt.
	Outcome error
	// Effect is the error that the effect returned; nil if it succeeded or was not
	// begun.
	Effect error
	// Cause is why the effect was not begun, why the outcome is in doubt, or why the
	// context of a failed effect had ended; nil if it had not ended.
	Cause error
}

func (e *EffectError) Error() string {
	text := fmt.Sprintf("%v: %q, token %d", e.Outcome, e.Resource, e.Token)
	if e.Effect != nil {
		text += ": " + e.Effect.Error()
	} else if e.Outcome == ErrInDoubt {
		text += ": it succeeded"
	}
	if e.Cause != nil && !errors.Is(e.Effect, e.Cause) {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *EffectError) Unwrap() []error {
	chain := []error{e.Outcome}
	for _, err := range []error{e.Effect, e.Cause} {
		if err != nil {
			chain = append(chain, err)
		}
	}
	return chain
}

// isOthers reports that the lease isn't this one's to free: it belongs to another holder or
// process, or it was kept.
func (e *EndError) isOthers() bool {
	return e.Reason == ErrLost || e.Reason == ErrDetached || e.Reason == ErrKept
}

// contextError returns the error for a caller whose context has ended: the error of the
// context, and its cause if that differs.
func contextError(ctx context.Context, doing string, resource fence.Resource) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err {
		return fmt.Errorf("%s %q: %w", doing, resource, err)
	}
	return fmt.Errorf("%s %q: %w: %w", doing, resource, err, cause)
}

// ownTimeout is the error of a store call that the client itself ended. It hides the
// store's context error, which a caller would take for the end of its own context.
type ownTimeout struct {
	after time.Duration
	err   error
}

func (e *ownTimeout) Error() string {
	return fmt.Sprintf("no answer within %v: %v", e.after.Round(time.Millisecond), e.err)
}

// storeError returns err, or an *ownTimeout if err only says that the client's deadline
// passed after this time.
func storeError(err error, after time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &ownTimeout{after, err}
	}
	return err
}
