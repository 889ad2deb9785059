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

// Pause is the time between two looks.
const Pause = time.Second

// How far a look goes back at least: a proxy that couldn't write records refusals later,
// with their own time. The first look goes back further, since it doesn't know the age of
// open transactions.
const (
	lookback   = 10 * time.Minute
	firstsBack = time.Hour
	slack      = time.Minute // a row's time is earlier than its transaction's first write
)

// Follower looks at the history, and at the resources. It is for one goroutine.
type Follower struct {
	// Filter says which events are wanted. Its Limit bounds each look, and must be given.
	Filter fence.EventFilter

	events    map[string]bool              // seen by the last look
	resources map[fence.Resource]time.Time // likewise, with their time of change
	last      time.Time                    // of the look before, by the database's clock
	open      map[string]time.Time         // transactions that were open then, and from when on they may have written
}

//go:embed sql/look.sql
var lookSQL string

//go:embed sql/events.sql
var eventsSQL string

//go:embed sql/resources.sql
var resourcesSQL string

// Since returns the time from which on there may be rows that no look has seen: those of
// transactions that were open at the last call, or have begun since. A transaction that
// writes holds a lock on its own number. Call it once for each look.
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

// Events returns the events since a moment that the last look didn't see.
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

// Saw notes events that were read by other means as seen.
func (f *Follower) Saw(all []fence.Event) {
	for _, e := range all {
		f.events[e.ID] = true
	}
}

// Change is the state of a resource after a change of its token, its holder or its policy.
type Change struct {
	Resource  fence.Resource
	Token     fence.Token
	Holder    string    // "" where it is unknown
	GrantedAt time.Time // zero where there is no holder
	Mode      fence.Mode
	At        time.Time
}

// Resources returns the changes of resources since a moment that the last look didn't see,
// the latest last and no more than the limit.
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
