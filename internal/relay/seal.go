package relay

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/adopt/seal"
)

// Reasons for which a grant isn't one.
var (
	errLockLost   = errors.New("the lock became another holder's during the seal")
	errTTLPassed  = errors.New("the lock's time passed during the seal")
	errClientGone = errors.New("the application closed the connection during the seal")
)

// grant seals a grant in all databases and begins its lease. On failure it gives the lock back.
func (r *Relay) grant(ctx context.Context, t *track, l look) error {
	limit := time.Now().Add(sealTimeout)
	if !l.until.IsZero() && l.until.Before(limit) {
		limit = l.until
	}
	sealing, cancel := context.WithDeadlineCause(ctx, limit, errTTLPassed)
	defer cancel()
	token, err := r.sealAbove(sealing, t, l)
	if ended := context.Cause(ctx); ended != nil {
		err = ended
	}
	lease := adopt.Lease{Resource: t.resource, Token: token, Source: Source, Holder: r.opts.Holder, From: "redis:" + t.key, Until: l.until}
	if err == nil && !t.settle(token, l.holder, &lease) {
		err = errTTLPassed
	}
	if err == nil {
		r.metrics.grants.Inc()
		r.opts.Logger.Debug("adopted a lock in Redis", "lock", t.key, "db", t.db, "resource", t.resource, "token", token)
		return nil
	}
	t.settle(token, "", nil)
	r.metrics.failedSeals.Inc()
	r.log.Warn("cannot seal the grant of a lock in Redis, giving the lock back", "lock", t.key, "db", t.db, "resource", t.resource, "token", token, "error", err)
	r.giveBack(t, token, l.holder)
	return err
}

// sealAbove seals the grant, with a higher token if the database knows this one or a higher one. It
// returns the last token that it tried.
func (r *Relay) sealAbove(ctx context.Context, t *track, l look) (fence.Token, error) {
	token := l.token
	for range seal.Rounds {
		last, err := seal.Everywhere(ctx, r.opts.Sealers, fence.Grant{Resource: t.resource, Token: token, Holder: r.opts.Holder})
		if err != nil || last == 0 {
			return token, err
		}
		higher, err := r.raise(ctx, t, token, last, l.holder)
		if err != nil {
			return token, err
		}
		t.raised(token, higher)
		token = higher
	}
	return token, fmt.Errorf("another token was recorded meanwhile, %d times", seal.Rounds)
}

// raise counts a token above last for a grant.
func (r *Relay) raise(ctx context.Context, t *track, token, last fence.Token, holder string) (fence.Token, error) {
	text, err := raiseScript.Run(ctx, r.own(t.db), []string{t.key, t.state}, r.opts.ID, token.String(), holder, last.String()).Text()
	if err != nil {
		return 0, fmt.Errorf("count a token above %d: %w", last, err)
	}
	if text == "" {
		return 0, errLockLost
	}
	higher, err := strconv.ParseInt(text, 10, 64)
	if err != nil || higher <= int64(last) {
		return 0, fmt.Errorf("count a token above %d: Redis has counted %q", last, text)
	}
	return fence.Token(higher), nil
}

// giveBack frees a lock that is still that of a grant.
func (r *Relay) giveBack(t *track, token fence.Token, holder string) {
	ctx, cancel := context.WithTimeout(context.Background(), sealTimeout)
	defer cancel()
	if err := backScript.Run(ctx, r.own(t.db), []string{t.key, t.state}, r.opts.ID, token.String(), holder).Err(); err != nil {
		r.log.Error("cannot give a lock in Redis back, it is taken until its time passes", "lock", t.key, "db", t.db, "error", err)
	}
}

// free ends the lease of a lock whose grants couldn't be counted, and frees the lock if its value is
// among these. It reports whether the application may have had it.
func (r *Relay) free(t *track, values [][]byte) bool {
	t.end("the lock can't be followed")
	ctx, cancel := context.WithTimeout(context.Background(), sealTimeout)
	defer cancel()
	args := make([]any, len(values))
	for i, value := range values {
		args[i] = value
	}
	freed, err := freeScript.Run(ctx, r.own(t.db), []string{t.key}, args...).Int()
	if err != nil {
		r.log.Error("cannot give a lock in Redis back, it is taken until its time passes", "lock", t.key, "db", t.db, "error", err)
	}
	return err != nil || freed > 0
}

// giveUp gives up a grant whose reply the application doesn't get.
func (r *Relay) giveUp(t *track, l look) {
	if token := t.abandon(l); token != 0 {
		r.giveBack(t, token, l.holder)
	}
}
