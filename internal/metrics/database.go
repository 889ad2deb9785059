package metrics

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/timelines"
)

//go:embed sql/resources.sql
var resourcesSQL string

//go:embed sql/handoffs.sql
var handoffsSQL string

// resource is what the database knows of one.
type resource struct {
	name    fence.Resource
	token   fence.Token
	source  fence.Source
	granted *time.Time
	writers int64
	leased  bool // in the database
}

// reading is what was read of the database at once.
type reading struct {
	place     *timelines.Place // nil where the server doesn't tell it
	resources []resource
}

// read reads the resources of so many names and some more.
func read(ctx context.Context, conn *pgx.Conn, names []fence.Resource, more int) (*reading, error) {
	r := &reading{}
	if place, err := timelines.Ask(ctx, conn.PgConn()); err == nil {
		r.place = &place
	}
	rows, err := conn.Query(ctx, resourcesSQL, inBytes(names), more)
	if err != nil {
		return nil, fmt.Errorf("read resources: %w", err)
	}
	r.resources, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (one resource, err error) {
		var name []byte
		err = row.Scan(&name, &one.token, &one.source, &one.granted, &one.writers, &one.leased)
		one.name = fence.Resource(name)
		return one, err
	})
	if err != nil {
		return nil, fmt.Errorf("read resources: %w", err)
	}
	return r, nil
}

// Resource names travel as bytes of UTF-8, whatever the encoding of the connection is.
func inBytes(names []fence.Resource) [][]byte {
	all := make([][]byte, len(names))
	for i, name := range names {
		all[i] = []byte(name)
	}
	return all
}

// lateness is how long after its time a row of the history may be committed and still be
// counted: one of a takeover that waits for other transactions, or for a standby, stays
// unseen until it has waited.
const lateness = time.Minute

// handoffs counts rows of the history.
type handoffs struct {
	settled time.Time       // up to then nothing is expected to come; the database's clock
	counts  map[event]int64 // up to then
	total   map[event]int64 // since then, too; never goes down
}

type event struct {
	label string
	kind  fence.EventKind
}

// count reads what has come. Rows after the first call's are counted.
func (h *handoffs) count(ctx context.Context, conn *pgx.Conn, names []fence.Resource) error {
	var now time.Time
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.clock_timestamp()").Scan(&now); err != nil {
		return fmt.Errorf("read handoffs: %w", err)
	}
	if h.settled.IsZero() {
		h.settled, h.counts, h.total = now, map[event]int64{}, map[event]int64{}
		return nil
	}
	until := h.settled
	if late := now.Add(-lateness); late.After(until) {
		until = late
	}
	rows, err := conn.Query(ctx, handoffsSQL, h.settled, until, inBytes(names))
	if err != nil {
		return fmt.Errorf("read handoffs: %w", err)
	}
	var (
		name            []byte
		kind            fence.EventKind
		settled, recent int64
	)
	come := map[event][2]int64{}
	if _, err := pgx.ForEachRow(rows, []any{&name, &kind, &settled, &recent}, func() error {
		label := string(name)
		if label == "" {
			label = Other
		}
		come[event{label, kind}] = [2]int64{settled, recent}
		return nil
	}); err != nil {
		return fmt.Errorf("read handoffs: %w", err)
	}
	h.settled = until
	for e, n := range come {
		h.counts[e] += n[0]
		h.total[e] = max(h.total[e], h.counts[e]+n[1])
	}
	return nil
}
