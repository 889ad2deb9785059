package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// acquireRequest is what an acquire takes; openapi.yaml explains the fields of
// this and all other messages.
type acquireRequest struct {
	Holder string   `json:"holder"`
	TTL    *seconds `json:"ttl_seconds"`
	Wait   seconds  `json:"wait_seconds"`
	Key    string   `json:"idempotency_key"`
}

// term is a lease's time, from the moment at which its holder sent the request. The
// server counts from when the request came in, which is later, and the store's time from
// before it asked the store, so the numbers are never too high.
type term struct {
	TTL        seconds `json:"ttl_seconds"`
	ExpiresIn  seconds `json:"expires_in_seconds"`
	RenewAfter seconds `json:"renew_after_seconds"`
}

// termOf returns the term of a lease that still has left. That counts from a moment which
// lies after behind the request's arrival.
func termOf(ttl, left, after time.Duration) term {
	expires := after + left
	return term{seconds(ttl), seconds(expires), seconds(max(0, expires-ttl+ttl/3))}
}

type grant struct {
	Resource string      `json:"resource"`
	Token    fence.Token `json:"token"`
	// TokenText is Token for programs whose numbers don't reach as far.
	TokenText string `json:"token_text"`
	Fence     string `json:"fence"`
	Holder    string `json:"holder"`
	GrantID   string `json:"grant_id"`
	// Sealed says that no lower token can be committed any more.
	Sealed bool `json:"sealed"`
	term
}

func (s *Server) acquire(w http.ResponseWriter, r *http.Request, resource fence.Resource) error {
	came := time.Now()
	request, err := read[acquireRequest](w, r)
	if err != nil {
		return err
	}
	if err := request.check(); err != nil {
		return err
	}
	if s.options.Store == nil {
		return errNoStore
	}
	wait, ttl := time.Duration(request.Wait), s.ttl(request.TTL)
	extend(w, wait+3*answerTime)
	lease, err := s.win(r.Context(), resource, wait, lockclient.WithTTL(ttl), lockclient.WithHolder(request.Holder), lockclient.WithID(request.Key))
	if err != nil {
		return err
	}
	after := time.Since(came)
	if err = cmp.Or(r.Context().Err(), lease.Err()); err == nil {
		s.logOf(r).Info("lease granted over HTTP", "resource", resource, "token", lease.Token(), "holder", lease.Holder(), "ttl", ttl)
		err = write(w, grant{
			string(resource), lease.Token(), lease.Token().String(), lease.Fence().String(), request.Holder, lease.GrantID(),
			lockclient.Sealed(s.options.Store, s.options.Sealers...), termOf(ttl, lease.Remaining(), after),
		})
	}
	if err != nil { // the caller doesn't know the lease, and would never free it
		return errors.Join(err, lease.Release(context.WithoutCancel(r.Context())))
	}
	_, _ = lease.Detach() // if it has ended by now, the caller knows when
	return nil
}

// check refuses fields that are out of range.
func (q acquireRequest) check() error {
	return errors.Join(
		wantText("holder", q.Holder, 1, maxHolder), wantKey(q.Key),
		wantTTL(q.TTL), wantTime("wait_seconds", q.Wait, 0, maxWait),
	)
}

// ttl returns the time that a caller names for a lease, or the default.
func (s *Server) ttl(given *seconds) time.Duration {
	if given == nil {
		return s.options.TTL
	}
	return time.Duration(*given)
}

func wantTTL(given *seconds) error {
	if given == nil {
		return nil
	}
	return wantTime("ttl_seconds", *given, MinTTL, MaxTTL)
}

func wantKey(key string) error {
	if key != "" && (len(key) < 16 || len(key) > maxKey || strings.Trim(key, keyBytes) != "") {
		return badRequest("the field idempotency_key must have 16 to %d letters, digits, or any of -_", maxKey)
	}
	return nil
}

const keyBytes = letters + "-_"

// win acquires the lease, and waits for a holder no longer than wait. The last try always
// has time to seal.
func (s *Server) win(ctx context.Context, resource fence.Resource, wait time.Duration, with ...lockclient.AcquireOption) (*lockclient.Lease, error) {
	ctx, stop := s.untilDraining(ctx)
	defer stop()
	lease, err := s.try(ctx, resource, with)
	if held := (*lockclient.HeldError)(nil); wait > 0 && errors.As(err, &held) {
		lease, err = s.await(ctx, resource, wait, with)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			lease, err = s.try(ctx, resource, with) // its error names the holder
		}
	}
	if errors.Is(context.Cause(ctx), errDraining) {
		err = errDraining
	}
	return lease, err
}

func (s *Server) try(ctx context.Context, resource fence.Resource, with []lockclient.AcquireOption) (*lockclient.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime/2)
	defer cancel()
	return s.client.TryAcquire(ctx, resource, with...)
}

// await waits for the lease.
func (s *Server) await(ctx context.Context, resource fence.Resource, wait time.Duration, with []lockclient.AcquireOption) (*lockclient.Lease, error) {
	select {
	case s.waits <- struct{}{}:
		defer func() { <-s.waits }()
	default:
		return nil, &problem{Status: http.StatusTooManyRequests, Type: "too-many-waits", Detail: "This proxy has the maximum number of waiting acquires. Try again later, or without wait_seconds.", Retry: "1"}
	}
	s.metrics.waits.Inc()
	defer s.metrics.waits.Dec()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return s.client.Acquire(ctx, resource, with...)
}

var errDraining = &problem{Status: http.StatusServiceUnavailable, Type: "draining", Detail: "This process is about to end. Ask again: another one will answer.", Retry: "1"}

// untilDraining returns a context that also ends when the server drains.
func (s *Server) untilDraining(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.serving, func() { cancel(errDraining) })
	return ctx, func() { stop(); cancel(nil) }
}

// giveBack frees a lease that its caller doesn't know of.
func (s *Server) giveBack(ctx context.Context, resource fence.Resource, grantID string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	if _, err := s.options.Store.Release(ctx, resource, grantID); err != nil {
		s.options.Logger.Warn("cannot release lease, it will expire", "resource", resource, "holder", lockclient.HolderOf(grantID), "error", err)
	}
}
