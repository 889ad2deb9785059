package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var errNoDatabase = &problem{
	Status: http.StatusServiceUnavailable, Type: "not-configured",
	Detail: "Tokens and their holders are in PostgreSQL: set WIREFENCE_DATABASE_URL, and start the process anew.",
}

var errNoResource = &problem{Status: http.StatusNotFound, Type: "no-such-resource", Detail: "No token of it was ever recorded."}

// How many resources, or events, one answer lists.
const (
	standardLimit = 100
	maxLimit      = 1000
)

type resourceStatus struct {
	Resource     string      `json:"resource"`
	Token        fence.Token `json:"token"`
	Holder       string      `json:"holder,omitempty"`
	Since        *time.Time  `json:"since,omitempty"`
	Advance      string      `json:"advance"`
	Reuse        string      `json:"reuse"`
	PreemptAfter *seconds    `json:"preempt_after_seconds"`
	Writers      int         `json:"writers"`
	Mode         string      `json:"mode"`
	Failover     string      `json:"failover"`
	Former       bool        `json:"former"`
	Lease        *leaseSeen  `json:"lease,omitempty"`
}

// leaseSeen is what the lease store tells of a lease.
type leaseSeen struct {
	GrantID string   `json:"grant_id"`
	HeldFor *seconds `json:"held_for_seconds,omitempty"`
}

func statusOf(s fence.ResourceStatus) resourceStatus {
	out := resourceStatus{
		Resource: string(s.Resource), Token: s.LastToken, Holder: s.Holder,
		Advance: string(s.Advance), Reuse: string(s.Reuse), Writers: s.Writers, Mode: string(s.Mode),
		Failover: string(s.Failover), Former: s.Former,
	}
	if !s.Since.IsZero() {
		since := s.Since.UTC()
		out.Since = &since
	}
	if s.PreemptAfter != nil {
		after := seconds(*s.PreemptAfter)
		out.PreemptAfter = &after
	}
	return out
}

type page struct {
	Resources []resourceStatus `json:"resources"`
	Next      string           `json:"next,omitempty"`
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	after, limit, err := pageOf(r.URL.RawQuery)
	if err != nil {
		return err
	}
	if s.options.Database == nil {
		return errNoDatabase
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTime)
	defer cancel()
	all, err := fence.StatusAfter(ctx, s.options.Database, after, limit+1)
	if err != nil {
		return err
	}
	answer := page{Resources: []resourceStatus{}}
	for _, status := range all[:min(limit, len(all))] {
		answer.Resources = append(answer.Resources, statusOf(status))
	}
	if len(all) > limit {
		answer.Next = string(all[limit-1].Resource)
	}
	return write(w, answer)
}

// pageOf reads the parameters of a list.
func pageOf(query string) (after fence.Resource, limit int, err error) {
	given, err := parameters(query, "after", "limit")
	if err != nil {
		return "", 0, err
	}
	if name, ok := given["after"]; ok {
		if after, err = fence.ParseResource(name); err != nil {
			return "", 0, badRequest("the parameter after: %s", nameFault(err))
		}
	}
	limit, err = limitOf(given)
	return after, limit, err
}

// parameters reads a query that has each of the known parameters once at most, and
// no other.
func parameters(query string, known ...string) (map[string]string, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, badRequest("the query can't be read: %v", err)
	}
	given := map[string]string{}
	for name, all := range values {
		if !slices.Contains(known, name) {
			return nil, badRequest("there is no parameter %q", name)
		}
		if len(all) > 1 {
			return nil, badRequest("the parameter %s comes %d times", name, len(all))
		}
		given[name] = all[0]
	}
	return given, nil
}

func limitOf(given map[string]string) (limit int, err error) {
	text, ok := given["limit"]
	if !ok {
		return standardLimit, nil
	}
	if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxLimit {
		return 0, badRequest("the parameter limit must be from 1 to %d", maxLimit)
	}
	return limit, nil
}

func (s *Server) show(w http.ResponseWriter, r *http.Request, resource fence.Resource) error {
	if s.options.Database == nil {
		return errNoDatabase
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTime)
	defer cancel()
	status, known, err := fence.StatusOf(ctx, s.options.Database, resource)
	if err != nil {
		return err
	}
	if !known {
		return errNoResource
	}
	answer := statusOf(status)
	seen, err := s.look(ctx, resource)
	if err != nil {
		return err
	}
	if seen.Holder != "" {
		answer.Lease = &leaseSeen{GrantID: seen.Holder}
		if seen.Remaining > 0 {
			left := seconds(seen.Remaining)
			answer.Lease.HeldFor = &left
		}
	}
	return write(w, answer)
}

// look asks the store who has a lease, if it can tell.
func (s *Server) look(ctx context.Context, resource fence.Resource) (lockclient.Attempt, error) {
	looker, ok := s.options.Store.(lockclient.Looker)
	if !ok {
		return lockclient.Attempt{}, nil
	}
	return looker.Look(ctx, resource)
}

type revokeRequest struct {
	Reason string `json:"reason"`
}

type revoked struct {
	Resource  string      `json:"resource"`
	Token     fence.Token `json:"token"`
	LockedOut *lockedOut  `json:"locked_out,omitempty"`
	// Ended are the transactions that it has ended.
	Ended []fence.Ended `json:"ended"`
	// LeaseFreed says that the lease store had the lease and has it no more.
	LeaseFreed bool `json:"lease_freed"`
}

// lockedOut is the holder whom a revocation hit.
type lockedOut struct {
	Holder string      `json:"holder"`
	Token  fence.Token `json:"token"`
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request, resource fence.Resource) error {
	request, err := read[revokeRequest](w, r)
	if err != nil {
		return err
	}
	if err := wantText("reason", request.Reason, 0, maxReason); err != nil {
		return err
	}
	if s.options.Database == nil {
		return errNoDatabase
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTime)
	defer cancel()
	done, err := lockclient.Revoke(ctx, s.options.Database, s.options.Store, resource, request.Reason)
	if err != nil {
		return err
	}
	log := s.logOf(r).With("resource", resource, "token", done.Token, "holder", done.LockedOut.Holder)
	log.Info("resource revoked over HTTP", "reason", request.Reason, "lease_freed", done.Freed != "", "ended", len(done.Ended))
	if done.NotFreed != nil {
		log.Warn("the revoked holder's lease was not freed", "error", done.NotFreed)
	}
	answer := revoked{Resource: string(resource), Token: done.Token, Ended: done.Ended, LeaseFreed: done.Freed != ""}
	if done.LockedOut.Holder != "" {
		answer.LockedOut = &lockedOut{done.LockedOut.Holder, done.LockedOut.Token}
	}
	return write(w, answer)
}
