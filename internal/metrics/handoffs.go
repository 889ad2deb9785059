package metrics

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
)

//go:embed sql/handoffs.sql
var handoffsSQL string

// waitBounds are the buckets of handoffs' waits, in seconds. A takeover that waits for
// preempt_after, 5 s by default, takes less than 6 s.
var waitBounds = []float64{0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 6, 10, 30, 60}

// lateness is the longest time between a row's own time and its commit for which the row is
// still counted: a takeover's row stays invisible while it waits for other transactions, or
// for a standby.
const lateness = time.Minute

// handoffs counts rows of the history.
type handoffs struct {
	settled time.Time       // no further rows are expected before it; the database's clock
	counts  map[event]tally // of rows before settled
	total   map[event]tally // of all rows; never goes down
}

// event has the fields in which rows of the history are counted together.
type event struct {
	label  string
	kind   fence.EventKind
	bucket int // of a handoff: the index in waitBounds, or their number for a longer wait
}

// tally is a number of rows, and the sum of their waits.
type tally struct {
	rows    int64
	seconds float64
}

func (t tally) plus(o tally) tally { return tally{t.rows + o.rows, t.seconds + o.seconds} }

// count reads new rows. It counts those that come after the first call.
func (h *handoffs) count(ctx context.Context, conn *pgx.Conn, names []fence.Resource) error {
	var now time.Time
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.clock_timestamp()").Scan(&now); err != nil {
		return fmt.Errorf("read handoffs: %w", err)
	}
	if h.settled.IsZero() {
		h.settled, h.counts, h.total = now, map[event]tally{}, map[event]tally{}
		return nil
	}
	until := h.settled
	if late := now.Add(-lateness); late.After(until) {
		until = late
	}
	come, err := readHandoffs(ctx, conn, h.settled, until, names)
	if err != nil {
		return fmt.Errorf("read handoffs: %w", err)
	}
	h.settled = until
	for e, n := range come {
		h.counts[e] = h.counts[e].plus(n.settled)
		seen, former := h.counts[e].plus(n.recent), h.total[e]
		h.total[e] = tally{max(seen.rows, former.rows), max(seen.seconds, former.seconds)}
	}
	return nil
}

// arrivals are the rows of an event before and after the time up to which they are settled.
type arrivals struct{ settled, recent tally }

// readHandoffs reads the rows since a moment. Those before until are settled.
func readHandoffs(ctx context.Context, conn *pgx.Conn, since, until time.Time, names []fence.Resource) (map[event]arrivals, error) {
	rows, err := conn.Query(ctx, handoffsSQL, since, until, inBytes(names), waitBounds)
	if err != nil {
		return nil, err
	}
	var (
		name []byte
		e    event
		n    arrivals
	)
	come := map[event]arrivals{}
	_, err = pgx.ForEachRow(rows, []any{&name, &e.kind, &e.bucket, &n.settled.rows, &n.recent.rows, &n.settled.seconds, &n.recent.seconds}, func() error {
		e.label = cmp.Or(string(name), Other)
		come[e] = n
		return nil
	})
	return come, err
}

// waits is the histogram of all handoffs among the events.
func waits(events map[event]tally) prometheus.Metric {
	var all tally
	within := make([]uint64, len(waitBounds)+1)
	for e, n := range events {
		if e.kind == fence.Handoff {
			all = all.plus(n)
			within[e.bucket] += uint64(n.rows)
		}
	}
	upTo, sum := map[float64]uint64{}, uint64(0)
	for i, bound := range waitBounds {
		sum += within[i]
		upTo[bound] = sum
	}
	return prometheus.MustNewConstHistogram(waitsDesc, uint64(all.rows), all.seconds, upTo)
}
