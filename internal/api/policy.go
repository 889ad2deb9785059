package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
)

// The bounds of a policy, as the database has them.
const (
	maxPolicyReason = 1000
	maxPreemptAfter = 24 * 24 * time.Hour
)

// policyRequest sets the policy of a resource. An absent field leaves the setting as it is,
// or gives a new resource the default.
type policyRequest struct {
	Reason         string       `json:"reason"`
	Source         *string      `json:"source"`
	MustNameSource *bool        `json:"must_name_source"`
	Advance        *string      `json:"advance"`
	Reuse          *string      `json:"reuse"`
	PreemptAfter   preemptAfter `json:"preempt_after_seconds"`
	Mode           *string      `json:"mode"`
	Failover       *string      `json:"failover"`
}

type changeRequest struct {
	policyRequest
	LastToken *givenToken `json:"last_token"`
}

// preemptAfter is a number of seconds, or null for ever; nil if it is absent.
type preemptAfter struct{ given *time.Duration }

func (p *preemptAfter) UnmarshalJSON(text []byte) error {
	wait := fence.Never
	if string(text) != "null" {
		var s seconds
		if err := s.UnmarshalJSON(text); err != nil {
			return err
		}
		if wait = time.Duration(s); wait < 0 { // which could be Never
			wait = maxPreemptAfter + 1
		}
	}
	p.given = &wait
	return nil
}

// givenToken is a token as a number or as a string: JavaScript's numbers can't hold every token.
type givenToken fence.Token

func (g *givenToken) UnmarshalJSON(text []byte) error {
	digits := string(text)
	if len(digits) > 2 && digits[0] == '"' {
		digits = digits[1 : len(digits)-1]
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return err
	}
	*g = givenToken(n)
	return nil
}

// policy checks the request, and returns its policy.
func (q policyRequest) policy() (p fence.Policy, err error) {
	p = fence.Policy{MustNameSource: q.MustNameSource, PreemptAfter: q.PreemptAfter.given}
	faults := []error{wantText("reason", q.Reason, 1, maxPolicyReason)}
	if strings.TrimSpace(q.Reason) == "" {
		faults = append(faults, badRequest("the field reason must say why"))
	}
	if q.Source != nil {
		if p.Source, err = fence.ParseSource(*q.Source); err != nil {
			faults = append(faults, badRequest("the field source: %s", nameFault(err)))
		}
	}
	if p.PreemptAfter != nil && *p.PreemptAfter != fence.Never {
		faults = append(faults, wantTime("preempt_after_seconds", seconds(*p.PreemptAfter), 0, maxPreemptAfter))
	}
	p.Advance = fence.Advance(oneOf(&faults, "advance", q.Advance, string(fence.AdvanceOnUse), string(fence.AdvanceOnGrant)))
	p.Reuse = fence.Reuse(oneOf(&faults, "reuse", q.Reuse, string(fence.ReuseAllowed), string(fence.ReuseOnce)))
	p.Mode = fence.Mode(oneOf(&faults, "mode", q.Mode, string(fence.ModeEnforce), string(fence.ModeShadow)))
	p.Failover = fence.Failover(oneOf(&faults, "failover", q.Failover, string(fence.FailoverReacquire), string(fence.FailoverTrust)))
	return p, errors.Join(faults...)
}

// oneOf returns the value of a field that must be one of some, or "" if it is absent.
func oneOf(faults *[]error, field string, given *string, values ...string) string {
	switch {
	case given == nil:
		return ""
	case !slices.Contains(values, *given):
		*faults = append(*faults, badRequest("the field %s must be %s", field, strings.Join(values, " or ")))
	}
	return *given
}

type changed struct {
	Resource string                        `json:"resource"`
	Settings map[string][2]json.RawMessage `json:"settings"`
}

// quoteTokens makes strings of the tokens in a change's settings, which have no other numbers.
func quoteTokens(settings map[string][2]json.RawMessage) {
	for name, values := range settings {
		for i, value := range values {
			if _, err := strconv.ParseInt(string(value), 10, 64); err == nil {
				values[i] = json.RawMessage(`"` + string(value) + `"`)
			}
		}
		settings[name] = values
	}
}

func (s *Server) change(w http.ResponseWriter, r *http.Request, resource fence.Resource) error {
	request, err := read[changeRequest](w, r)
	if err != nil {
		return err
	}
	policy, err := request.policy()
	if err != nil {
		return err
	}
	if request.LastToken != nil {
		if *request.LastToken < 0 {
			return badRequest("the field last_token must be at least 0")
		}
		policy.LastToken = (*fence.Token)(request.LastToken)
	}
	if policy == (fence.Policy{}) {
		return badRequest("the request names no setting to change")
	}
	if s.options.Database == nil {
		return errNoDatabase
	}
	named, err := fence.SetPolicy(r.Context(), s.options.Database, resource, policy, request.Reason)
	if err != nil {
		return policyFault(err)
	}
	quoteTokens(named)
	text, err := json.Marshal(named)
	if err != nil {
		return err
	}
	s.logOf(r).Info("policy changed over HTTP", "resource", resource, "reason", request.Reason, "settings", string(text))
	return write(w, changed{string(resource), named})
}

type declared struct {
	Resource string `json:"resource"`
	Declared bool   `json:"declared"`
}

func (s *Server) declare(w http.ResponseWriter, r *http.Request, resource fence.Resource) error {
	request, err := read[policyRequest](w, r)
	if err != nil {
		return err
	}
	policy, err := request.policy()
	if err != nil {
		return err
	}
	if s.options.Database == nil {
		return errNoDatabase
	}
	made, err := fence.Declare(r.Context(), s.options.Database, resource, policy, request.Reason)
	if err != nil {
		return policyFault(err)
	}
	if made {
		s.logOf(r).Info("resource declared over HTTP", "resource", resource, "reason", request.Reason)
	}
	return write(w, declared{string(resource), made})
}

// policyFault returns the problem of a policy that the database refuses.
func policyFault(err error) error {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	const invalidValue, notSupported = "22023", "0A000"
	switch {
	case !ok:
		return err
	case fence.IsDeclared(err):
		return &problem{Status: http.StatusConflict, Type: "already-declared", Detail: sentences(refusal.Message, refusal.Detail)}
	case refusal.Code == invalidValue || refusal.Code == notSupported:
		return badRequest("%s", sentences(refusal.Message, refusal.Detail))
	}
	return err
}

func sentences(message, detail string) string {
	if detail == "" {
		return message + "."
	}
	return message + ". " + detail
}
