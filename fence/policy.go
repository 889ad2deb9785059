package fence

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Policy is what an operator says about a resource. What is zero or nil is left
// as it is, or as a new resource has it.
type Policy struct {
	// Source is where the tokens come from. Another source than before locks
	// the present holder out, as Revoke does.
	Source Source
	// MustNameSource refuses tokens that don't name the source.
	MustNameSource *bool
	// Advance of a resource that is declared is AdvanceOnGrant unless given.
	Advance Advance
	Reuse   Reuse
	Mode    Mode
	// Failover of a resource that is declared is the database's unless given.
	Failover Failover
	// PreemptAfter is how long a newer token waits before it ends the
	// transactions in its way: 0 or more, or Never.
	PreemptAfter *time.Duration
	// LastToken is the number that tokens count from, 0 or more, for a source
	// that counts lower than the one before. It locks the present holder out.
	// Below the number recorded, it makes MustNameSource true unless that is
	// given. A resource that is declared has none.
	LastToken *Token
}

// Never as a PreemptAfter waits for ever.
const Never time.Duration = -1

// ResourceChange is what an operator said about a resource at some time.
type ResourceChange struct {
	At time.Time `json:"at"`
	// By is the role that was logged in, and Application the session's
	// application_name, which tells who it was where operators share a role.
	By          string `json:"by"`
	Application string `json:"application,omitempty"`
	Reason      string `json:"reason"`
	// Settings has each setting that was named or changed along, with its value
	// before and after in JSON.
	Settings map[string][2]json.RawMessage `json:"settings"`
}

//go:embed sql/declare.sql
var declareSQL string

//go:embed sql/set.sql
var setSQL string

//go:embed sql/undeclared.sql
var undeclaredSQL string

//go:embed sql/failover.sql
var failoverSQL string

//go:embed sql/carry_name.sql
var carryNameSQL string

//go:embed sql/carries_name.sql
var carriesNameSQL string

//go:embed sql/changes.sql
var changesSQL string

// Declare makes a resource known before its first token, with the reason. It
// returns false if the resource was known and has the settings that are given;
// that it has others is an error, which IsDeclared tells. The role must have
// wirefence_issuer.
func Declare(ctx context.Context, q Querier, r Resource, p Policy, reason string) (bool, error) {
	var made bool
	err := q.QueryRow(ctx, declareSQL, []byte(r), reason, string(p.Source), p.MustNameSource, string(p.Advance), string(p.Reuse), p.preemptAfter(),
		string(p.Mode), string(p.Failover)).Scan(&made)
	if err != nil {
		return false, fmt.Errorf("declare resource %q: %w", r, err)
	}
	return made, nil
}

// SetPolicy changes what is given of a resource's policy, with the reason, and
// returns it with the values before and after. A resource that was neither
// recorded nor declared is refused with ResourceUnknown. The role must have
// wirefence_issuer.
func SetPolicy(ctx context.Context, q Querier, r Resource, p Policy, reason string) (map[string][2]json.RawMessage, error) {
	var settings map[string][2]json.RawMessage
	err := q.QueryRow(ctx, setSQL, []byte(r), reason, string(p.Source), p.MustNameSource, string(p.Advance), string(p.Reuse), p.preemptAfter(), p.LastToken,
		string(p.Mode), string(p.Failover)).Scan(&settings)
	if err != nil {
		return nil, fmt.Errorf("set policy of resource %q: %w", r, err)
	}
	return settings, nil
}

// Undeclared says what becomes of a token for a resource that is not known.
type Undeclared string

// By default such a token counts, and makes the resource known. RefuseUndeclared
// refuses it, and its seal, with ResourceUnknown.
const (
	AllowUndeclared  Undeclared = "allow"
	RefuseUndeclared Undeclared = "refuse"
)

// SetUndeclared says for all resources what becomes of those that are not known,
// with the reason, and returns the setting with its value before and after. What
// was recorded or declared before counts as declared. The role must have
// wirefence_issuer.
func SetUndeclared(ctx context.Context, q Querier, u Undeclared, reason string) (map[string][2]json.RawMessage, error) {
	var settings map[string][2]json.RawMessage
	if err := q.QueryRow(ctx, undeclaredSQL, string(u), reason).Scan(&settings); err != nil {
		return nil, fmt.Errorf("set what becomes of undeclared resources: %w", err)
	}
	return settings, nil
}

// SetFailover says what a promotion of the database does to tokens, of all resources of
// which no operator has said it and of those to come, with the reason. It returns the
// setting with its value before and after. The role must have wirefence_issuer.
func SetFailover(ctx context.Context, q Querier, f Failover, reason string) (map[string][2]json.RawMessage, error) {
	var settings map[string][2]json.RawMessage
	if err := q.QueryRow(ctx, failoverSQL, string(f), reason).Scan(&settings); err != nil {
		return nil, fmt.Errorf("set what a promotion does to tokens: %w", err)
	}
	return settings, nil
}

// SetCarryName sets whether a fence in application_name counts, with the reason, and returns the
// setting with its value before and after. The role must have wirefence_issuer.
func SetCarryName(ctx context.Context, q Querier, counts bool, reason string) (map[string][2]json.RawMessage, error) {
	var settings map[string][2]json.RawMessage
	if err := q.QueryRow(ctx, carryNameSQL, counts, reason).Scan(&settings); err != nil {
		return nil, fmt.Errorf("set whether a fence in application_name counts: %w", err)
	}
	return settings, nil
}

// CarriesName reports whether a fence in application_name counts. Any role may ask.
func CarriesName(ctx context.Context, q Querier) (counts bool, err error) {
	if err = q.QueryRow(ctx, carriesNameSQL).Scan(&counts); err != nil {
		err = fmt.Errorf("ask whether a fence in application_name counts: %w", err)
	}
	return counts, err
}

// Changes lists what operators said about a resource, the latest last. The role
// must have wirefence_issuer.
func Changes(ctx context.Context, q Querier, r Resource) ([]ResourceChange, error) {
	rows, err := q.Query(ctx, changesSQL, []byte(r))
	if err != nil {
		return nil, fmt.Errorf("read changes of resource %q: %w", r, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ResourceChange])
	if err != nil {
		return nil, fmt.Errorf("read changes of resource %q: %w", r, err)
	}
	return all, nil
}

// IsDeclared reports whether err says that a resource to be declared is known
// with other settings.
func IsDeclared(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "42710"
}

// preemptAfter is PreemptAfter as the SQL functions read it, "" for none.
func (p Policy) preemptAfter() string {
	switch {
	case p.PreemptAfter == nil:
		return ""
	case *p.PreemptAfter == Never:
		return "never"
	}
	return strconv.FormatInt(p.PreemptAfter.Microseconds(), 10) + " microseconds"
}
