package fence

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// EventKind is what an Event tells of.
type EventKind string

// The kinds of events.
const (
	Handoff      EventKind = "handoff"    // a grant to another holder, or a first use of a higher token
	Revocation   EventKind = "revocation" // an operator's
	HolderEnded  EventKind = "ended"      // a session, for standing in the way of a newer token
	RefusalEvent EventKind = "refusal"
	ShadowEvent  EventKind = "shadow" // a refusal that was let pass
	BypassEvent  EventKind = "bypass"
	Dropped      EventKind = "dropped" // events of which a proxy could record no more than the number
)

// EventKinds lists the kinds.
func EventKinds() []EventKind {
	return []EventKind{Handoff, Revocation, HolderEnded, RefusalEvent, ShadowEvent, BypassEvent, Dropped}
}

// ParseEventKinds reads names of kinds.
func ParseEventKinds(names []string) (kinds []EventKind, err error) {
	for _, name := range names {
		if !slices.Contains(EventKinds(), EventKind(name)) {
			return nil, fmt.Errorf("%q is no kind of event; there are %v", name, EventKinds())
		}
		kinds = append(kinds, EventKind(name))
	}
	return kinds, nil
}

// Event is a row of the history that the database keeps. What isn't known, or
// doesn't apply to its kind, is zero.
type Event struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
	// LastAt is when the last of Count events alike happened, of which At is the
	// first.
	LastAt *time.Time `json:"last_at,omitempty"`
	Count  int64      `json:"count"`
	Kind   EventKind  `json:"kind"`
	// State is that of a refusal.
	State    SQLState `json:"state,omitempty"`
	Resource Resource `json:"resource,omitempty"`
	// Token is the new one of a handoff or revocation, or the one that was
	// presented and refused.
	Token Token `json:"token,omitempty"`
	// CurrentToken is the last token as it was then: of a handoff or revocation,
	// before it.
	CurrentToken Token  `json:"current_token,omitempty"`
	Source       Source `json:"source,omitempty"`
	// Holder has the resource, after a handoff.
	Holder       string `json:"holder,omitempty"`
	FormerHolder string `json:"former_holder,omitempty"`
	// Table is the guarded one.
	Table  string `json:"relation,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Of the session that was refused, or that made the handoff:
	Login       string `json:"login,omitempty"`
	Application string `json:"application,omitempty"`
	Address     string `json:"address,omitempty"`
	PID         int    `json:"pid,omitempty"`
	// Proxy is the name of the one that told of it.
	Proxy string `json:"proxy,omitempty"`
	// Database is the session's, if another of the server than keeps this history.
	Database string `json:"database,omitempty"`
	// TraceParent is that of the statement's comment, of the first of Count refusals (W3C
	// Trace Context).
	TraceParent string `json:"traceparent,omitempty"`
	// WaitedSeconds is, of a handoff or a revocation, how long the message that asked for it
	// was under way in the server, which is mostly the wait for older transactions.
	WaitedSeconds float64 `json:"waited_seconds,omitempty"`
}

// EventFilter says which events are wanted. The zero value wants the newest 100.
type EventFilter struct {
	Resource Resource // "": of all
	Since    time.Time
	Kinds    []EventKind // none: all
	Limit    int         // the newest so many; 0: 100
}

//go:embed sql/history.sql
var historySQL string

//go:embed sql/history_totals.sql
var historyTotalsSQL string

//go:embed sql/refusals_since.sql
var refusalsSinceSQL string

//go:embed sql/record_refusals.sql
var recordRefusalsSQL string

//go:embed sql/collect_refusals.sql
var collectRefusalsSQL string

//go:embed sql/prune_history.sql
var pruneHistorySQL string

// History returns the newest events, the newest last. The role must have
// wirefence_issuer.
func History(ctx context.Context, q Querier, f EventFilter) ([]Event, error) {
	var resource []byte
	if f.Resource != "" {
		resource = []byte(f.Resource)
	}
	var since *time.Time
	if !f.Since.IsZero() {
		since = &f.Since
	}
	var kinds []string
	for _, kind := range f.Kinds {
		kinds = append(kinds, string(kind))
	}
	limit := f.Limit
	if limit == 0 {
		limit = 100
	}
	rows, err := q.Query(ctx, historySQL, resource, since, kinds, limit)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Event, err error) {
		err = row.Scan(&e)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return all, nil
}

// HistoryTotals are what the history keeps and what it doesn't.
type HistoryTotals struct {
	Kept int64
	// MaxRows is how many events that only an issuer can bring about are kept, and as
	// many others.
	MaxRows int64
	MaxAge  time.Duration
	// Oldest is zero where nothing is kept.
	Oldest time.Time
	// Raised is how many refusals the database has raised. Of these Unrecorded were
	// recorded by no proxy. Where a proxy records, that leaves out those of the last one
	// or two minutes, and UnrecordedAt is when the number last rose; otherwise it is zero.
	Raised, Unrecorded int64
	UnrecordedAt       time.Time
	// Dropped is how many handoffs, ended transactions or notes of shadow mode could
	// not be recorded, since the database was prepared.
	Dropped int64
}

// TotalsOfHistory returns them. The role must have wirefence_issuer.
func TotalsOfHistory(ctx context.Context, q Querier) (HistoryTotals, error) {
	var t HistoryTotals
	var age int64
	var oldest, unrecorded *time.Time
	if err := q.QueryRow(ctx, historyTotalsSQL).Scan(&t.Kept, &t.MaxRows, &age, &oldest, &t.Raised, &t.Unrecorded, &t.Dropped, &unrecorded); err != nil {
		return t, fmt.Errorf("read totals of the history: %w", err)
	}
	t.MaxAge = time.Duration(age) * time.Microsecond
	if oldest != nil {
		t.Oldest = *oldest
	}
	if unrecorded != nil {
		t.UnrecordedAt = *unrecorded
	}
	return t, nil
}

// RefusalCount is how many writes, and checked reads, were refused, and how many that
// would have been were let pass in shadow mode.
type RefusalCount struct{ Refused, LetPass int64 }

// RefusalsWithin counts the refusals that the history has of the time up to now, by
// resource; "" has those that no resource is known of. The role must have
// wirefence_issuer.
func RefusalsWithin(ctx context.Context, q Querier, d time.Duration) (map[Resource]RefusalCount, error) {
	rows, err := q.Query(ctx, refusalsSinceSQL, d.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("count refusals: %w", err)
	}
	counts := map[Resource]RefusalCount{}
	var resource []byte
	var n RefusalCount
	if _, err := pgx.ForEachRow(rows, []any{&resource, &n.Refused, &n.LetPass}, func() error {
		counts[Resource(resource)] = n
		return nil
	}); err != nil {
		return nil, fmt.Errorf("count refusals: %w", err)
	}
	return counts, nil
}

// SeenRefusal is an event that the refused transaction could not record, told by
// who has seen it. Kind is RefusalEvent, ShadowEvent or Dropped.
type SeenRefusal struct {
	Event
	// Age and LastAge are how long ago it happened, first and last; they stand for
	// At and LastAt, which are the database's to tell.
	Age, LastAge time.Duration
	// Raised says that a function of the schema raised the refusal.
	Raised bool
}

// MarshalJSON gives the form that the database reads.
func (s SeenRefusal) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Event
		ID      *struct{} `json:"id,omitempty"` // these two take the event's place
		At      *struct{} `json:"at,omitempty"`
		Age     float64   `json:"age"`
		LastAge float64   `json:"last_age"`
		Raised  bool      `json:"raised"`
	}{Event: s.Event, Age: s.Age.Seconds(), LastAge: s.LastAge.Seconds(), Raised: s.Raised})
}

// RecordRefusals writes what a proxy of that name has seen, in one transaction.
// The role must have wirefence_issuer.
func RecordRefusals(ctx context.Context, q Querier, proxy string, seen []SeenRefusal) error {
	text, err := json.Marshal(seen)
	if err != nil {
		return err
	}
	if _, err := q.Exec(ctx, recordRefusalsSQL, proxy, string(text)); err != nil {
		return fmt.Errorf("record refusals: %w", err)
	}
	return nil
}

// CollectRefusals records the last refusals of a database without a proxy. The role must have
// wirefence_issuer.
func CollectRefusals(ctx context.Context, q Querier) error {
	if _, err := q.Exec(ctx, collectRefusalsSQL); err != nil {
		return fmt.Errorf("collect refusals: %w", err)
	}
	return nil
}

// PruneHistory deletes up to 10,000 events that are past the bounds and returns how
// many. The role must have wirefence_issuer.
func PruneHistory(ctx context.Context, q Querier) (int64, error) {
	var pruned int64
	if err := q.QueryRow(ctx, pruneHistorySQL).Scan(&pruned); err != nil {
		return 0, fmt.Errorf("prune history: %w", err)
	}
	return pruned, nil
}
