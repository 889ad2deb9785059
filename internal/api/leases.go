package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/wirefence/wirefence/fence"
)

var errNoStore = &problem{
	Status: http.StatusServiceUnavailable, Type: "not-configured",
	Detail: "There is no lease store: set WIREFENCE_DATABASE_URL, or one of the settings of other lease stores, and start the process anew.",
}

// storeTime is what a store and a database have to answer a renewal, a release, a
// look or a revocation.
const storeTime = 10 * time.Second

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
	ctx, cancel := context.WithTimeout(r.Context(), storeTime)
	defer cancel()
	after := time.Since(came)
	held, err := s.options.Store.Renew(ctx, resource, request.GrantID, ttl)
	if err != nil {
		return err
	}
	if !held {
		return &problem{
			Status: http.StatusConflict, Type: "lease-lost",
			Detail: fmt.Sprintf("The lease of %q is not that grant's any more and never will be again. Stop the work; to go on, acquire anew.", resource),
		}
	}
	return write(w, renewal{string(resource), request.GrantID, termOf(ttl, ttl, after)})
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
	ctx, cancel := context.WithTimeout(r.Context(), storeTime)
	defer cancel()
	held, err := s.options.Store.Release(ctx, resource, request.GrantID)
	if err != nil {
		return err
	}
	s.options.Logger.Debug("lease released over HTTP", "resource", resource, "holder", request.GrantID, "was_held", held, "client", r.RemoteAddr)
	return write(w, released{string(resource), request.GrantID, held})
}
