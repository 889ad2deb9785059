//go:build linux

package faulttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

// timelineOf is SQL for the timeline that a primary writes.
const timelineOf = `('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int`

// application writes all the time through a sidecar, without fences and unaware of
// failovers. It records each answer, and the timeline of the server that stored the row.
type application struct {
	name   string
	url    string
	random *rand.Rand
	conn   *pgx.Conn

	*observations
	writes []*write
	served map[int]int64 // when it was first served on a timeline: wrote, or stood by and read
	wrote  []ack
}

// ack is a write that was acknowledged.
type ack struct {
	at       int64
	timeline int
}

// observations guards the records of the applications, and lets others wait for them.
type observations struct {
	mu      sync.Mutex
	changed chan struct{}
}

func newObservations() *observations { return &observations{changed: make(chan struct{})} }

// post changes the records.
func (b *observations) post(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	close(b.changed)
	b.changed = make(chan struct{})
}

// await waits until a condition on the records holds, for as long as a recovery may take.
func (b *observations) await(ctx context.Context, what string, so func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	for {
		b.mu.Lock()
		done, changed := so(), b.changed
		b.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		}
	}
}

// run writes until ctx ends. It reconnects when its session has ended, and waits for its
// sidecar.
func (a *application) run(ctx context.Context) {
	defer func() {
		if a.conn != nil {
			closing, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = a.conn.Close(closing)
		}
	}()
	for n := 1; ctx.Err() == nil; {
		if a.conn == nil || a.conn.IsClosed() {
			conn, err := pgx.Connect(ctx, a.url)
			if err != nil {
				wait(ctx, 20*time.Millisecond)
				continue
			}
			a.conn = conn
		}
		a.write(ctx, n)
		n++
		wait(ctx, between(a.random, time.Millisecond, 15*time.Millisecond))
	}
}

// write writes one row, and reads if the sidecar stands by.
func (a *application) write(ctx context.Context, n int) {
	w := &write{id: fmt.Sprintf("%s.%d", a.name, n), call: now(), writeOutcome: unknown}
	a.post(func() { a.writes = append(a.writes, w) })
	timeline, err := a.insert(ctx, w.id)
	switch state := fence.StateOf(err); {
	case ctx.Err() != nil:
		return // which may have come before the answer
	case err == nil:
		at := now()
		a.post(func() {
			w.writeOutcome, w.ret = committed, at
			a.wrote = append(a.wrote, ack{at, timeline})
			a.serve(timeline, at)
		})
	case state == fence.LeaseNotHeld || state == fence.StaleToken:
		a.post(func() { w.writeOutcome, w.ret = refused, now() })
		if a.conn.QueryRow(ctx, "SELECT "+timelineOf).Scan(&timeline) == nil {
			a.post(func() { a.serve(timeline, now()) })
		}
	case state != "":
		a.post(func() { w.writeOutcome, w.ret, w.failure = misjudged, now(), err.Error() })
	default:
		a.post(func() { w.ret, w.failure = now(), err.Error() })
		if !a.conn.IsClosed() && a.conn.PgConn().TxStatus() != 'I' {
			_ = a.conn.Close(ctx)
		}
	}
}

// serve records that the application was served on a timeline. The observations are
// locked.
func (a *application) serve(timeline int, at int64) {
	if a.served[timeline] == 0 {
		a.served[timeline] = at
	}
}

const insertRow = "INSERT INTO journal (id) VALUES ($1) RETURNING timeline"

// insert writes a row in one of three ways: the simple protocol, the extended protocol,
// and a slow transaction.
func (a *application) insert(ctx context.Context, id string) (timeline int, err error) {
	switch a.random.IntN(3) {
	case 0:
		err = a.conn.QueryRow(ctx, insertRow, pgx.QueryExecModeSimpleProtocol, id).Scan(&timeline)
	case 1:
		err = a.conn.QueryRow(ctx, insertRow, id).Scan(&timeline)
	default:
		err = pgx.BeginFunc(ctx, a.conn, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, insertRow, id).Scan(&timeline)
			if err == nil {
				wait(ctx, between(a.random, 0, 10*time.Millisecond))
			}
			return err
		})
	}
	return timeline, err
}
