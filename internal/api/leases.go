package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var errNoStore = &problem{
	Status: http.StatusServiceUnavailable, Type: "not-configured",
	Detail: "There is no lease store: set WIREFENCE_DATABASE_URL, or one of the settings of other lease stores, and restart the process.",
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
	if err := errors.Join(wantText("grant_id", request.GrantID, 1, maxGrant), wantTTL(request.TTL)); err != nil {
		return err
	}
	if s.options.Store == nil {
		return errNoStore
	}
	after, ttl := time.Since(came), s.ttl(request.TTL)
	held, err := s.options.Store.Renew(r.Context(), resource, request.GrantID, ttl)
	if err != nil {
		return err
	}
	if err := s.compare(r.Context(), resource, request.GrantID, held); err != nil {
		return err
	}
	if !held {
		return lost(causeLost, "it has expired, was released or was revoked")
	}
	return write(w, renewal{string(resource), request.GrantID, termOf(ttl, ttl, after)})
}

// causeTime bounds the wait for the reason why a lease was lost.
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

// compare fails if a database has recorded another grant since the one that was renewed,
// and frees the renewed lease. A store that seals by itself refuses such a renewal, and is
// asked only why a lease was lost. Records that can't be read have no say.
func (s *Server) compare(ctx context.Context, resource fence.Resource, grantID string, held bool) error {
	if !held {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, causeTime)
		defer cancel()
	}
	holder := lockclient.HolderOf(grantID)
	grants, err := lockclient.LastGrants(ctx, s.options.Store, s.options.Sealers, resource, held)
	if err != nil {
		s.options.Logger.Warn("cannot compare lease with the last grant", "resource", resource, "holder", holder, "error", err)
	}
	differs := slices.IndexFunc(grants, func(last fence.Grant) bool {
		return (last.Holder != holder || last.Former) && (last.Token != 0 || held)
	})
	if differs < 0 {
		return nil
	}
	last := grants[differs]
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
	held, err := s.options.Store.Release(r.Context(), resource, request.GrantID)
	if err != nil {
		return err
	}
	s.logOf(r).Debug("lease released over HTTP", "resource", resource, "holder", lockclient.HolderOf(request.GrantID), "was_held", held)
	return write(w, released{string(resource), request.GrantID, held})
}
