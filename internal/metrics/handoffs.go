package metrics

import (
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

// waitBounds are the upper bounds, in seconds, by which the waits of handoffs are told
// apart. 6 s is what a takeover takes that preempt_after, 5 s by default, has ended.
var waitBounds = []float64{0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 6, 10, 30, 60}

// lateness is how long after its time a row of the history may be committed and still be
// counted: one of a takeover that waits for other transactions, or for a standby, stays
// unseen until it has waited.
const lateness = time.Minute

// handoffs counts rows of the history.
type handoffs struct {
	settled time.Time       // up to then nothing is expected to come; the database's clock
	counts  map[event]tally // up to then
	total   map[event]tally // since then, too; never goes down
}

// event is what rows of the history have in common.
type event struct {
	label  string
	kind   fence.EventKind
	bucket int // of a handoff: the index in waitBounds, or their number for a longer wait
}

// tally is how many rows there are, and how long they waited in all.
type tally struct {
	rows    int64
	seconds float64
}

func (t tally) plus(o tally) tally { return tally{t.rows + o.rows, t.seconds + o.seconds} }

// count reads what has come. Rows after the first call's are counted.
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
	rows, err := conn.Query(ctx, handoffsSQL, h.settled, until, inBytes(names), waitBounds)
	if err != nil {
		return fmt.Errorf("read handoffs: %w", err)
	}
	var (
		name            []byte
		e               event
		settled, recent tally
	)
	come := map[event][2]tally{}
	if _, err := pgx.ForEachRow(rows, []any{&name, &e.kind, &e.bucket, &settled.rows, &recent.rows, &settled.seconds, &recent.seconds}, func() error {
		e.label = string(name)
		if e.label == "" {
			e.label = Other
		}
		come[e] = [2]tally{settled, recent}
		return nil
	}); err != nil {
		return fmt.Errorf("read handoffs: %w", err)
	}
	h.settled = until
	for e, n := range come {
		h.counts[e] = h.counts[e].plus(n[0])
		seen, former := h.counts[e].plus(n[1]), h.total[e]
		h.total[e] = tally{max(seen.rows, former.rows), max(seen.seconds, former.seconds)}
	}
	return nil
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
