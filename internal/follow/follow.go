// Package follow reports each row of the history once, and each change of a resource, by
// polling.
//
// A row becomes visible when its transaction commits, which may be long after the row's time.
package follow

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

// Pause is the time between two polls.
const Pause = time.Second

// How far a poll goes back at least: a proxy that couldn't write records refusals later, with
// the time of the refusal. The first poll goes back further, since the age of open transactions
// isn't known.
const (
	lookback   = 10 * time.Minute
	firstsBack = time.Hour
	slack      = time.Minute // a row's time is earlier than its transaction's first write
)

// Follower polls the history and the resources. It is for one goroutine.
type Follower struct {
	// Filter selects the events. Its Limit bounds each poll, and is required.
	Filter fence.EventFilter

	events    map[string]bool              // seen by the last poll
	resources map[fence.Resource]time.Time // likewise, with their times of change
	last      time.Time                    // of the last poll, by the database's clock
	open      map[string]time.Time         // transactions that were open then, with the earliest time of their writes
}

//go:embed sql/look.sql
var lookSQL string

//go:embed sql/events.sql
var eventsSQL string

//go:embed sql/resources.sql
var resourcesSQL string

// Since returns the earliest time of rows that no poll has seen: those of transactions that were
// open at the last call, or have begun since. A transaction that writes holds a lock on its own
// number. Call Since once for each poll.
func (f *Follower) Since(ctx context.Context, q fence.Querier) (time.Time, error) {
	var now time.Time
	var open []string
	if err := q.QueryRow(ctx, lookSQL).Scan(&now, &open); err != nil {
		return time.Time{}, fmt.Errorf("read the time and the open transactions: %w", err)
	}
	if f.last.IsZero() {
		f.last = now.Add(-firstsBack)
	}
	since := f.last
	for _, began := range f.open {
		since = earlier(since, began)
	}
	known := f.open
	f.open = make(map[string]time.Time, len(open))
	for _, xid := range open {
		began, ok := known[xid]
		if !ok {
			began = f.last
		}
		f.open[xid] = began
	}
	f.last = now
	since = earlier(since.Add(-slack), now.Add(-lookback))
	if f.Filter.Since.After(since) {
		since = f.Filter.Since
	}
	return since, nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Events returns the events after a time that the last poll didn't see.
func (f *Follower) Events(ctx context.Context, q fence.Querier, since time.Time) (fresh []fence.Event, err error) {
	var resource []byte
	if f.Filter.Resource != "" {
		resource = []byte(f.Filter.Resource)
	}
	var kinds []string
	for _, kind := range f.Filter.Kinds {
		kinds = append(kinds, string(kind))
	}
	rows, err := q.Query(ctx, eventsSQL, since, resource, kinds, f.Filter.Limit)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e fence.Event, err error) {
		err = row.Scan(&e)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	known := f.events
	f.events = make(map[string]bool, len(all))
	for _, e := range all {
		f.events[e.ID] = true
		if !known[e.ID] {
			fresh = append(fresh, e)
		}
	}
	return fresh, nil
}

// Saw records events that were read by other means as seen.
func (f *Follower) Saw(all []fence.Event) {
	for _, e := range all {
		f.events[e.ID] = true
	}
}

// Change is the state of a resource after a change of its token, its holder or its policy.
type Change struct {
	Resource  fence.Resource
	Token     fence.Token
	Holder    string    // "" if it is unknown
	GrantedAt time.Time // zero without a holder
	Mode      fence.Mode
	At        time.Time
}

// Resources returns the changes of resources after a time that the last poll didn't see, the
// latest last and at most limit.
func (f *Follower) Resources(ctx context.Context, q fence.Querier, since time.Time, limit int) (fresh []Change, err error) {
	rows, err := q.Query(ctx, resourcesSQL, since, limit)
	if err != nil {
		return nil, fmt.Errorf("look for changed resources: %w", err)
	}
	all, err := pgx.CollectRows(rows, scanChange)
	if err != nil {
		return nil, fmt.Errorf("look for changed resources: %w", err)
	}
	known := f.resources
	f.resources = make(map[fence.Resource]time.Time, len(all))
	for _, c := range slices.Backward(all) {
		f.resources[c.Resource] = c.At
		if at, seen := known[c.Resource]; !seen || !at.Equal(c.At) {
			fresh = append(fresh, c)
		}
	}
	return fresh, nil
}

func scanChange(row pgx.CollectableRow) (c Change, err error) {
	var name []byte
	var granted *time.Time
	err = row.Scan(&name, &c.Token, &c.Holder, &granted, &c.Mode, &c.At)
	c.Resource = fence.Resource(name)
	if granted != nil {
		c.GrantedAt = *granted
	}
	return c, err
}
