package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// problem is the answer to a request that failed, in the form of RFC 9457.
type problem struct {
	Type   string `json:"type"` // written with problemPrefix
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Of lease-held.
	HeldBy  string   `json:"held_by,omitempty"`
	HeldFor *seconds `json:"held_for_seconds,omitempty"`
	// Of lease-lost.
	Cause string `json:"cause,omitempty"`
	// Of scope-required.
	RequiredScope string `json:"required_scope,omitempty"`
	// Of fence-refused.
	SQLState string `json:"sqlstate,omitempty"`
	Hint     string `json:"hint,omitempty"`
	// Retry is the pause before another try, in seconds.
	Retry string `json:"-"`
}

const problemPrefix = "urn:wirefence:problem:"

// titles has all types of problems.
var titles = map[string]string{
	"invalid-request":        "The request is not valid",
	"token-required":         "A bearer token is required",
	"token-file-required":    "No bearer token is set",
	"scope-required":         "The token's scope is insufficient",
	"cross-origin":           "A cross-origin request is refused",
	"admin-only":             "The listener is for applications",
	"no-such-path":           "There is no such path",
	"no-such-resource":       "The resource is not known",
	"method-not-allowed":     "The path does not have this method",
	"already-declared":       "The resource has other settings",
	"lease-held":             "Another holder has the lease",
	"lease-lost":             "The lease is lost",
	"fence-refused":          "The fence is refused",
	"effect-lost":            "The fence did not hold to the end of the effect",
	"no-such-effect":         "The effect is not known",
	"too-many-effects":       "Too many effects are open",
	"too-large":              "The request is too large",
	"unsupported-media-type": "The request is not JSON",
	"too-many-waits":         "Too many acquires wait",
	"too-many-streams":       "Too many event streams are open",
	"not-configured":         "A setting is missing",
	"draining":               "The process is about to end",
	"unavailable":            "The lease store or the database can't serve now",
}

func (p *problem) Error() string { return p.Detail }

func badRequest(format string, args ...any) error {
	return &problem{Status: http.StatusBadRequest, Type: "invalid-request", Detail: fmt.Sprintf(format, args...)}
}

// statusGone is counted for callers that went away before the answer.
const statusGone = 499

// fail answers an error and returns the status.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, operation string, err error) int {
	if r.Context().Err() != nil {
		return statusGone
	}
	p := problemOf(err)
	if p.Status >= 500 && p.Type == "unavailable" {
		s.logOf(r).Error("API request failed", "operation", operation, "error", err)
	}
	if p.Retry != "" {
		w.Header().Set("Retry-After", p.Retry)
	}
	answer := *p
	answer.Type, answer.Title = problemPrefix+p.Type, titles[p.Type]
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(answer.Status)
	_ = json.NewEncoder(w).Encode(&answer)
	_ = http.NewResponseController(w).Flush()
	return answer.Status
}

// problemOf translates errors of leases and fences.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if held, ok := errors.AsType[*lockclient.HeldError](err); ok {
		p := &problem{Status: http.StatusConflict, Type: "lease-held", Detail: held.Error() + ".", HeldBy: held.Holder}
		if held.Remaining > 0 {
			left := seconds(held.Remaining)
			p.HeldFor = &left
		}
		return p
	}
	p := &problem{Status: http.StatusServiceUnavailable, Type: "unavailable", Detail: err.Error(), Retry: "1"}
	switch {
	case fence.IsUndeclared(err):
		p = errNoResource
	case errors.Is(err, context.DeadlineExceeded):
		p.Detail = "No answer in time; it isn't known whether the request was carried out: " + err.Error()
	}
	return p
}

// nameFault describes the fault of a resource's name outside of a fence.
func nameFault(err error) string {
	if wrong := (*fence.SyntaxError)(nil); errors.As(err, &wrong) {
		return wrong.Reason
	}
	return err.Error()
}
