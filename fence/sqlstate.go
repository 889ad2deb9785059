package fence

import "errors"

// SQLState is one of the codes of class WF.
type SQLState string

// The conditions that a client sees. None may be retried blindly: the token or
// the statement must change first.
const (
	StaleToken      SQLState = "WF001" // lower than the highest token recorded
	TokenRequired   SQLState = "WF002" // a guard or the policy wants one, none came
	UnknownToken    SQLState = "WF003" // higher than any token granted
	MalformedToken  SQLState = "WF004" // the text is not a fence
	TokenReused     SQLState = "WF005" // accepted once already, under reuse = once
	CannotBeFenced  SQLState = "WF006" // the statement can't run behind a check
	LeaseNotHeld    SQLState = "WF007" // the sidecar is on standby
	ResourceUnknown SQLState = "WF008" // the resource is not declared
)

var conditions = map[SQLState]string{
	StaleToken:      "stale_fencing_token",
	TokenRequired:   "fencing_token_required",
	UnknownToken:    "unknown_fencing_token",
	MalformedToken:  "malformed_fencing_token",
	TokenReused:     "fencing_token_reused",
	CannotBeFenced:  "statement_cannot_be_fenced",
	LeaseNotHeld:    "lease_not_held",
	ResourceUnknown: "unknown_fenced_resource",
}

// States returns every code of class WF with its condition name.
func States() map[SQLState]string {
	all := make(map[SQLState]string, len(conditions))
	for state, name := range conditions {
		all[state] = name
	}
	return all
}

// Condition returns the name of the condition, or "" for a code that is not
// one of ours.
func (s SQLState) Condition() string { return conditions[s] }

// StateOf returns the code of class WF that err carries anywhere in its chain,
// and "" for every other error. It asks by the method SQLState() string, which
// pgconn.PgError and lib/pq's Error have.
func StateOf(err error) SQLState {
	var coded interface {
		error
		SQLState() string
	}
	if !errors.As(err, &coded) {
		return ""
	}
	state := SQLState(coded.SQLState())
	if _, ours := conditions[state]; !ours {
		return ""
	}
	return state
}

// IsRefusal reports whether err is any refusal of class WF.
func IsRefusal(err error) bool { return StateOf(err) != "" }

// IsStale reports whether err says that a later holder has superseded the
// token: the work must stop, a retry with the same token can never succeed.
func IsStale(err error) bool { return StateOf(err) == StaleToken }

// IsRequired reports whether err says that a fence was wanted and none came.
func IsRequired(err error) bool { return StateOf(err) == TokenRequired }

// IsUnknown reports whether err says that the token was never granted.
func IsUnknown(err error) bool { return StateOf(err) == UnknownToken }

// IsMalformed reports whether err says that a text is not a fence.
func IsMalformed(err error) bool { return StateOf(err) == MalformedToken }

// IsReused reports whether err says that a single-use token came again.
func IsReused(err error) bool { return StateOf(err) == TokenReused }

// IsUnfenceable reports whether err says that the statement can't be fenced.
func IsUnfenceable(err error) bool { return StateOf(err) == CannotBeFenced }

// IsUndeclared reports whether err says that the resource was never recorded or
// declared.
func IsUndeclared(err error) bool { return StateOf(err) == ResourceUnknown }
