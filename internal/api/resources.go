package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var errNoDatabase = &problem{
	Status: http.StatusServiceUnavailable, Type: "not-configured",
	Detail: "Tokens and holders are in PostgreSQL: set WIREFENCE_DATABASE_URL, and restart the process.",
}

var errNoResource = &problem{Status: http.StatusNotFound, Type: "no-such-resource", Detail: "No token of the resource was ever recorded."}

// How many resources, or events, one answer lists.
const (
	standardLimit = 100
	maxLimit      = 1000
)

type resourceStatus struct {
	fence.ResourceStatus
	TokenText    string   `json:"token_text"`
	PreemptAfter *seconds `json:"preempt_after_seconds"`
	// Held reports whether the lease is held now; nil if that isn't known.
	Held  *bool      `json:"held,omitempty"`
	Lease *leaseSeen `json:"lease,omitempty"`
	// Changes are of one resource only.
	Changes []fence.ResourceChange `json:"changes,omitempty"`
}

// maxChanges is how many of them are shown, the newest.
const maxChanges = 100

// leaseSeen is a lease as the lease store has it.
type leaseSeen struct {
	Holder  string   `json:"holder"`
	HeldFor *seconds `json:"held_for_seconds,omitempty"`
	// ExpiresAt is when it ends if it isn't renewed, by this machine's clock.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

func statusOf(s fence.ResourceStatus) resourceStatus {
	out := resourceStatus{ResourceStatus: s, TokenText: s.LastToken.String()}
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

// lookTime bounds the store's answers to a list, which is sent without them if they are late.
const lookTime = 3 * time.Second

func (s *Server) list(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	after, limit, leases, err := pageOf(r.URL.RawQuery)
	if err != nil {
		return err
	}
	if s.options.Database == nil {
		return errNoDatabase
	}
	all, err := fence.StatusAfter(r.Context(), s.options.Database, after, limit+1)
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
	if leases {
		s.readLeases(r, answer.Resources)
	}
	return write(w, answer)
}

// pageOf reads the parameters of a list.
func pageOf(query string) (after fence.Resource, limit int, leases bool, err error) {
	given, err := parameters(query, "after", "limit", "leases")
	if err != nil {
		return "", 0, false, err
	}
	if name, ok := given["after"]; ok {
		if after, err = fence.ParseResource(name); err != nil {
			return "", 0, false, badRequest("the parameter after: %s", nameFault(err))
		}
	}
	if text, ok := given["leases"]; ok {
		if leases = text == "true"; !leases && text != "false" {
			return "", 0, false, badRequest("the parameter leases must be true or false")
		}
	}
	limit, err = limitOf(given)
	return after, limit, leases, err
}

// parameters parses a query that has each known parameter at most once, and no other.
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
			return nil, badRequest("the parameter %s is given %d times", name, len(all))
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
	status, known, err := fence.StatusOf(r.Context(), s.options.Database, resource)
	if err != nil {
		return err
	}
	if !known {
		return errNoResource
	}
	one := []resourceStatus{statusOf(status)}
	s.readLeases(r, one)
	answer := one[0]
	changes, err := fence.Changes(r.Context(), s.options.Database, resource)
	if err != nil {
		return err
	}
	answer.Changes = changes[max(0, len(changes)-maxChanges):]
	for _, c := range answer.Changes {
		quoteTokens(c.Settings)
	}
	return write(w, answer)
}

// readLease asks the store for the holder of a lease, if the store can be asked.
func (s *Server) readLease(ctx context.Context, status *resourceStatus) error {
	looker, ok := s.options.Store.(lockclient.Looker)
	if !ok || status.Source != "" && s.options.Counts != "" && status.Source != s.options.Counts {
		return nil
	}
	seen, err := looker.Look(ctx, status.Resource)
	if err != nil {
		return err
	}
	held := seen.Holder != ""
	if status.Held = &held; !held {
		return nil
	}
	status.Lease = &leaseSeen{Holder: seen.Holder}
	if seen.Remaining > 0 {
		left := seconds(seen.Remaining)
		status.Lease.HeldFor, status.Lease.ExpiresAt = &left, utc(time.Now().Add(seen.Remaining))
	}
	return nil
}

// concurrentLooks is how many resources the store is asked for at a time.
const concurrentLooks = 8

// readLeases reads the leases of resources from the store. When the store fails once, the leases of the
// remaining ones stay unknown. A store that is known to be down isn't asked.
func (s *Server) readLeases(r *http.Request, all []resourceStatus) {
	if s.options.StoreDown() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookTime)
	defer cancel()
	looks, ctx := errgroup.WithContext(ctx)
	looks.SetLimit(concurrentLooks)
	for i := range all {
		looks.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return s.readLease(ctx, &all[i])
		})
	}
	if err := looks.Wait(); err != nil && r.Context().Err() == nil {
		s.logOf(r).Warn("cannot ask the lease store who holds what", "error", err)
	}
}

type revokeRequest struct {
	Reason string `json:"reason"`
}

type revoked struct {
	Resource  string      `json:"resource"`
	Token     fence.Token `json:"token"`
	TokenText string      `json:"token_text"`
	LockedOut *lockedOut  `json:"locked_out,omitempty"`
	// Ended are the transactions that the revocation ended.
	Ended []fence.Ended `json:"ended"`
	// LeaseFreed is true if the revocation freed the lease in the store.
	LeaseFreed bool `json:"lease_freed"`
}

// lockedOut is the holder that a revocation locked out.
type lockedOut struct {
	Holder    string      `json:"holder"`
	Token     fence.Token `json:"token"`
	TokenText string      `json:"token_text"`
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
	databases := append([]lockclient.PostgresSealer{{Querier: s.options.Database}}, s.options.Further...)
	done, err := lockclient.Revoke(r.Context(), databases, s.options.Store, resource, request.Reason)
	if err != nil {
		if slices.ContainsFunc(done.Databases, func(each lockclient.Revoked) bool { return each.Err == nil }) {
			err = &problem{Status: http.StatusServiceUnavailable, Type: "unavailable", Detail: "It is not revoked in every database: " + err.Error(), Retry: "1"}
		}
		return err
	}
	own := done.Databases[0]
	log := s.logOf(r).With("resource", resource, "token", own.Token, "holder", own.LockedOut.Holder)
	answer := revoked{Resource: string(resource), Token: own.Token, TokenText: own.Token.String(), Ended: []fence.Ended{}, LeaseFreed: done.Freed != ""}
	for _, each := range done.Databases {
		answer.Ended = append(answer.Ended, each.Ended...)
	}
	log.Info("resource revoked over HTTP", "reason", request.Reason, "lease_freed", answer.LeaseFreed, "ended", len(answer.Ended))
	if done.NotFreed != nil {
		log.Warn("the revoked holder's lease was not freed", "error", done.NotFreed)
	}
	if own.LockedOut.Holder != "" {
		answer.LockedOut = &lockedOut{own.LockedOut.Holder, own.LockedOut.Token, own.LockedOut.Token.String()}
	}
	return write(w, answer)
}
