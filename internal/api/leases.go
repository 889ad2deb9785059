package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var errNoStore = &problem{
	Status: http.StatusServiceUnavailable, Type: "not-configured",
	Detail: "There is no lease store: set WIREFENCE_DATABASE_URL, or one of the settings of other lease stores, and restart the process.",
}

// storeTime is what a store and a database have to answer a renewal, a release, a
// look or a revocation.
const storeTime = 10 * time.Second

// toStore is a request's context, with that bound.
func toStore(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), storeTime)
}

type renewRequest struct {
	GrantID string   `json:"grant_id"`
	TTL     *seconds `json:"ttl_seconds"`
}

type renewal struct {
	Resource string `json:"resource"`
	GrantID  string `json:"grant_id"`
	term
}

func (s *Server) renew(w http.ResponseWriter, r *http.Request, resource fence.Resource) error {
	came := time.Now()
	request, err := read[renewRequest](w, r)
	if err != nil {
		return err
	}
	ttl := s.options.TTL
	if request.TTL != nil {
		ttl = time.Duration(*request.TTL)
	}
	if err := errors.Join(wantText("grant_id", request.GrantID, 1, maxGrant), wantTime("ttl_seconds", seconds(ttl), MinTTL, MaxTTL)); err != nil {
		return err
	}
	if s.options.Store == nil {
		return errNoStore
	}
	ctx, cancel := toStore(r)
	defer cancel()
	after := time.Since(came)
	held, err := s.options.Store.Renew(ctx, resource, request.GrantID, ttl)
	if err != nil {
		return err
	}
	if err := s.compare(ctx, resource, request.GrantID, held); err != nil {
		return err
	}
	if !held {
		return lost(causeLost, "it has expired, was released or was revoked")
	}
	return write(w, renewal{string(resource), request.GrantID, termOf(ttl, ttl, after)})
}

// causeTime is what a holder whose lease is gone waits at most to learn why.
const causeTime = 500 * time.Millisecond

// Why a lease was lost, for programs.
const (
	causeLost     = "lost" // another has it, or the lease store has it no more
	causeRevoked  = "revoked"
	causeFailover = "failover"
)

func lost(cause, how string) error {
	return &problem{
		Status: http.StatusConflict, Type: "lease-lost", Cause: cause,
		Detail: "The lease is lost and never comes back: " + how + ". Stop the work; acquire again to continue.",
	}
}

// compare fails if another grant than the one that was renewed was recorded last
// where writes are judged, and frees the lease of one that was. A store that seals
// by itself knows, and is asked only why it doesn't have a lease any more. Where it
// can't be asked, the store's word counts.
func (s *Server) compare(ctx context.Context, resource fence.Resource, grantID string, held bool) error {
	record, ok := s.options.Sealer.(lockclient.Record)
	if !ok && !held {
		record, ok = s.options.Store.(lockclient.Record)
	}
	if !ok {
		return nil
	}
	if !held {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, causeTime)
		defer cancel()
	}
	last, err := record.LastGrant(ctx, resource)
	if err != nil {
		s.options.Logger.Warn("lease not compared with the last grant", "resource", resource, "holder", grantID, "error", err)
		return nil
	}
	if last.Holder == grantID && !last.Former || last.Token == 0 && !held {
		return nil
	}
	if held {
		s.giveBack(ctx, resource, grantID)
	}
	if last.Former {
		return lost(causeFailover, "the database was promoted or restored, and no token that was granted before counts")
	}
	if last.Holder == "" {
		return lost(causeRevoked, "it was revoked")
	}
	return lost(causeLost, fmt.Sprintf("token %d was granted to %s", last.Token, last.Holder))
}

type releaseRequest struct {
	GrantID string `json:"grant_id"`
}

type released struct {
	Resource string `json:"resource"`
	GrantID  string `json:"grant_id"`
	WasHeld  bool   `json:"was_held"`
}

func (s *Server) release(w http.ResponseWriter, r *http.Request, resource fence.Resource) error {
	request, err := read[releaseRequest](w, r)
	if err != nil {
		return err
	}
	if err := wantText("grant_id", request.GrantID, 1, maxGrant); err != nil {
		return err
	}
	if s.options.Store == nil {
		return errNoStore
	}
	ctx, cancel := toStore(r)
	defer cancel()
	held, err := s.options.Store.Release(ctx, resource, request.GrantID)
	if err != nil {
		return err
	}
	s.logOf(r).Debug("lease released over HTTP", "resource", resource, "holder", request.GrantID, "was_held", held)
	return write(w, released{string(resource), request.GrantID, held})
}
