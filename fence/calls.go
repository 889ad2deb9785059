package fence

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/committed"
)

// Resource names travel as bytes of UTF-8, since a client's encoding is the
// database's unless it says otherwise, and a name that arrived as another would
// be another resource.

// Querier runs SQL: a *pgx.Conn, a pgx.Tx or a *pgxpool.Pool, of which Seal accepts no
// other. The calls below are as safe for concurrent use as it is.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Grant is what a lock service hands out: a token for a resource, to a holder.
// Holder is a name for people, and may be empty. Source names the service; empty,
// the token is taken to be of the resource's own.
type Grant struct {
	Resource Resource
	Token    Token
	Holder   string
	Source   Source
	// Former says that the grant doesn't count: the database was promoted or restored
	// after it was sealed. Only what reads grants sets it.
	Former bool
}

// Advance says what may move the last token of a resource on.
type Advance string

// Reuse says how many transactions a token is good for.
type Reuse string

// Failover says what a promotion of the database, or its restore, does to the tokens of a
// resource.
type Failover string

// Mode says what becomes of a write that is to be refused.
type Mode string

// The policies of a resource.
const (
	AdvanceOnUse   Advance = "use"   // the first use of a higher token below 2^62
	AdvanceOnGrant Advance = "grant" // a seal alone; a higher token is unknown
	ReuseAllowed   Reuse   = "allow" // any number, while the token is current
	ReuseOnce      Reuse   = "once"  // one

	ModeEnforce Mode = "enforce" // it is refused
	ModeShadow  Mode = "shadow"  // it passes, and is noted

	FailoverReacquire Failover = "reacquire" // none counts that was granted before
	FailoverTrust     Failover = "trust"     // they count: the storage keeps every commit
)

// ResourceStatus is what the database knows of a resource.
type ResourceStatus struct {
	Resource  Resource `json:"resource"`
	LastToken Token    `json:"token"`
	// Source is "" as long as no token named one.
	Source Source `json:"source,omitempty"`
	// MustNameSource says that a token which names no source is refused.
	MustNameSource bool `json:"must_name_source"`
	// Holder is "" where it is unknown: after a first use without a seal, or a
	// revocation.
	Holder string `json:"holder,omitempty"`
	// Since is when LastToken was recorded, in UTC; zero after a revocation.
	Since   time.Time `json:"since,omitzero"`
	Advance Advance   `json:"advance"`
	Reuse   Reuse     `json:"reuse"`
	Mode    Mode      `json:"mode"`
	// Failover says whether tokens count that were granted before a promotion.
	Failover Failover `json:"failover"`
	// Former says that they don't, and that this is so: LastToken was sealed before a
	// promotion or a restore, and no token counts until another is sealed. A standby
	// doesn't say it.
	Former bool `json:"former"`
	// PreemptAfter is how long a newer token waits before it ends the
	// transactions in its way; nil waits for ever.
	PreemptAfter *time.Duration `json:"-"`
	// Writers is how many sessions keep a takeover waiting, by an open transaction
	// or by a hold.
	Writers int `json:"writers"`
}

//go:embed sql/seal.sql
var sealSQL string

//go:embed sql/last_token.sql
var lastTokenSQL string

//go:embed sql/last_grant.sql
var lastGrantSQL string

//go:embed sql/revoke.sql
var revokeSQL string

//go:embed sql/status.sql
var statusSQL string

// Seal records a grant. Once it has committed, no transaction with an older
// token of the resource can commit any more. False means that the token isn't
// higher than the last one recorded; that the resource's tokens come from another
// source is an error, which IsUnknown tells. It waits for older transactions, and
// ends them after the resource's PreemptAfter. The role must have wirefence_issuer.
//
// With synchronous replication the commit waits for a standby, whatever the role's
// synchronous_commit is. ErrNotReplicated says that this wait was cancelled: the token is
// recorded, but may not be behind a failover, and must not be handed out.
func Seal(ctx context.Context, q Querier, g Grant) (bool, error) {
	sealed, err := seal(ctx, q, g)
	if err != nil {
		return false, fmt.Errorf("seal resource %q: %w", g.Resource, err)
	}
	return sealed, nil
}

func seal(ctx context.Context, q Querier, g Grant) (bool, error) {
	conn, release, err := committed.Conn(ctx, q)
	if err != nil {
		return false, err
	}
	defer release()
	row, err := committed.Row(ctx, conn, sealSQL, []byte(g.Resource), int64(g.Token), g.Holder, string(g.Source))
	if err != nil {
		return false, err
	}
	return string(row[0]) == "t", nil
}

// ErrNotReplicated says that a grant is on the primary alone, though it was to be on a
// synchronous standby, too.
var ErrNotReplicated = committed.ErrNotReplicated

// LastToken returns the highest token recorded for a resource, 0 if there is
// none. It is for a lock service whose counter has fallen behind; a holder must
// never take its token from here. The role must have wirefence_issuer.
func LastToken(ctx context.Context, q Querier, r Resource) (Token, error) {
	var last Token
	if err := q.QueryRow(ctx, lastTokenSQL, []byte(r)).Scan(&last); err != nil {
		return 0, fmt.Errorf("read last token of resource %q: %w", r, err)
	}
	return last, nil
}

// LastGrant returns the highest token recorded for a resource and its holder,
// who is "" after a revocation or a first use without a seal. Without any, the
// token is 0. The role must have wirefence_issuer.
func LastGrant(ctx context.Context, q Querier, r Resource) (Grant, error) {
	last := Grant{Resource: r}
	err := q.QueryRow(ctx, lastGrantSQL, []byte(r)).Scan(&last.Token, &last.Holder, &last.Source, &last.Former)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Grant{}, fmt.Errorf("read last grant of resource %q: %w", r, err)
	}
	return last, nil
}

// Revoke locks the present holder of a resource out at once, ends the
// transactions that hold it, and returns the new last token, which is nobody's.
// A resource that was never recorded is refused with ResourceUnknown. The role
// must have wirefence_issuer.
func Revoke(ctx context.Context, q Querier, r Resource) (Token, error) {
	last, _, err := RevokeEnding(ctx, q, r, "")
	return last, err
}

// Ended is a transaction that was ended, since it held a resource with an older
// token: the process that served it, who was logged in, and the application's name.
type Ended struct {
	PID         int    `json:"pid"`
	Login       string `json:"login"`
	Application string `json:"application"`
}

// RevokeEnding is Revoke with a reason for the history, "" for none, and tells which
// transactions it has ended.
func RevokeEnding(ctx context.Context, q Querier, r Resource, reason string) (Token, []Ended, error) {
	var last Token
	var ended []Ended
	if err := q.QueryRow(ctx, revokeSQL, []byte(r), reason).Scan(&last, &ended); err != nil {
		return 0, nil, fmt.Errorf("revoke resource %q: %w", r, err)
	}
	return last, ended, nil
}

// Status lists the resources by name. The role must have wirefence_issuer.
func Status(ctx context.Context, q Querier) ([]ResourceStatus, error) {
	return readStatus(ctx, q, nil, nil, nil)
}

// StatusAfter lists up to limit resources whose names come after one in byte
// order; all do after "". The role must have wirefence_issuer.
func StatusAfter(ctx context.Context, q Querier, after Resource, limit int) ([]ResourceStatus, error) {
	return readStatus(ctx, q, []byte(after), nil, &limit)
}

// StatusOf returns what is known of one resource, and false if it was never
// recorded. The role must have wirefence_issuer.
func StatusOf(ctx context.Context, q Querier, r Resource) (ResourceStatus, bool, error) {
	all, err := readStatus(ctx, q, nil, []byte(r), nil)
	if err != nil || len(all) == 0 {
		return ResourceStatus{}, false, err
	}
	return all[0], true, nil
}

func readStatus(ctx context.Context, q Querier, after, only []byte, limit *int) ([]ResourceStatus, error) {
	rows, err := q.Query(ctx, statusSQL, after, only, limit)
	if err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	all, err := pgx.CollectRows(rows, scanStatus)
	if err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	return all, nil
}

func scanStatus(row pgx.CollectableRow) (ResourceStatus, error) {
	var (
		s            ResourceStatus
		name         []byte
		since        *time.Time
		preemptAfter *int64 // microseconds
	)
	err := row.Scan(&name, &s.LastToken, &s.Source, &s.MustNameSource, &s.Holder, &since, &s.Advance, &s.Reuse, &preemptAfter, &s.Writers, &s.Mode,
		&s.Failover, &s.Former)
	s.Resource = Resource(name)
	if since != nil {
		s.Since = since.UTC()
	}
	if preemptAfter != nil {
		d := time.Duration(*preemptAfter) * time.Microsecond
		s.PreemptAfter = &d
	}
	return s, err
}
