package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

// How often a follower looks, and how far it looks back at least: a proxy that
// couldn't write tells of refusals later, with the time at which they were. At the
// start, when it doesn't know since when transactions are open, it looks back
// further.
const (
	followPause      = time.Second
	followLookback   = 10 * time.Minute
	followFirstsBack = time.Hour
	followSlack      = time.Minute // a row has a time from before its transaction is seen to write
	followLimit      = 1_000_000
)

// follower prints each event once. Rows are seen when their transaction has
// committed, which may be long after their time.
type follower struct {
	filter fence.EventFilter
	asJSON bool
	w      io.Writer
	seen   map[string]bool
	last   time.Time            // of the look before, by the database's clock
	open   map[string]time.Time // transactions that were open then, and from when on they may have written
}

const lookSQL = `SELECT clock_timestamp(), coalesce(array_agg(DISTINCT transactionid::text), '{}')
FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted`

// since returns from when on there may be rows that the look before has not seen:
// of the transactions that were open then, or have begun since. A transaction that
// writes holds a lock on its own number.
func (f *follower) since(ctx context.Context, conn *pgx.Conn) (time.Time, error) {
	var now time.Time
	var open []string
	if err := conn.QueryRow(ctx, lookSQL).Scan(&now, &open); err != nil {
		return time.Time{}, fmt.Errorf("read the time and the open transactions: %w", err)
	}
	if f.last.IsZero() {
		f.last = now.Add(-followFirstsBack)
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
	since = earlier(since.Add(-followSlack), now.Add(-followLookback))
	if f.filter.Since.After(since) {
		since = f.filter.Since
	}
	return since, nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// fresh returns the events that there are since the moment, and were not seen yet.
func (f *follower) fresh(ctx context.Context, conn *pgx.Conn, since time.Time) (fresh []fence.Event, err error) {
	filter := f.filter
	filter.Since, filter.Limit = since, followLimit
	all, err := fence.History(ctx, conn, filter)
	known := f.seen
	f.seen = make(map[string]bool, len(all))
	for _, e := range all {
		f.seen[e.ID] = true
		if !known[e.ID] {
			fresh = append(fresh, e)
		}
	}
	return fresh, err
}

// followHistory prints what is there and what comes until ctx ends.
func followHistory(ctx context.Context, conn *pgx.Conn, filter fence.EventFilter, asJSON bool, w io.Writer) error {
	f := &follower{filter: filter, asJSON: asJSON, w: w}
	for first := true; ; first = false {
		since, err := f.since(ctx, conn)
		var fresh []fence.Event
		if err == nil {
			fresh, err = f.fresh(ctx, conn, since)
		}
		if first && err == nil { // of what is there, what is asked for
			if fresh, err = fence.History(ctx, conn, filter); err == nil {
				for _, e := range fresh {
					f.seen[e.ID] = true
				}
			}
		}
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		if err := f.print(fresh, first); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followPause):
		}
	}
}

func (f *follower) print(all []fence.Event, heading bool) error {
	if f.asJSON {
		lines := json.NewEncoder(f.w)
		for _, e := range all {
			if err := lines.Encode(e); err != nil {
				return err
			}
		}
		return nil
	}
	var b strings.Builder
	if heading {
		fixedWidth(&b, eventHeading)
	}
	for _, e := range all {
		fixedWidth(&b, eventCells(e))
	}
	_, err := io.WriteString(f.w, b.String())
	return err
}

// eventWidths are those of the columns where the rows to come aren't known, but for
// the last.
var eventWidths = [...]int{24, 10, 20, 10, 10, 20, 32, 5}

func fixedWidth(b *strings.Builder, cells []string) {
	for i, width := range eventWidths {
		fmt.Fprintf(b, "%-*s  ", width, cells[i])
	}
	b.WriteString(cells[len(eventWidths)] + "\n")
}
