package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
)

// Run writes until ctx ends, and then the remaining refusals within the grace. It must be called
// only once.
func (j *Journal) Run(ctx context.Context, grace time.Duration) {
	j.writeUntil(ctx)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	for j.Left() > 0 && last.Err() == nil {
		if _, err := j.write(last, true); err != nil {
			j.failed(err)
			break
		}
	}
	if left := j.Left(); left > 0 {
		j.options.Logger.Warn("refusals were not recorded in the history", "count", left)
	}
	j.disconnect()
}

// keepIdle is the longest pause over which the journal keeps its connection.
const keepIdle = time.Second

func (j *Journal) writeUntil(ctx context.Context) {
	retry := j.options.RetryMin
	upkeep := time.Now()
	for ctx.Err() == nil {
		wait, err := j.write(ctx, false)
		if err == nil && !time.Now().Before(upkeep) {
			upkeep = time.Now().Add(j.options.Upkeep)
			err = j.upkeep(ctx)
		}
		wake := j.wake
		if err != nil && ctx.Err() == nil {
			j.failed(err)
			wait, wake = retry, nil
			retry = min(2*retry, j.options.RetryMax)
		} else if err == nil {
			retry = j.options.RetryMin
			wait = min(wait, time.Until(upkeep))
		}
		if wait > keepIdle {
			j.disconnect()
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-time.After(max(wait, 0)):
		}
	}
}

// failed closes the connection and logs the error.
func (j *Journal) failed(err error) {
	j.disconnect()
	j.logFailure(err)
}

func (j *Journal) logFailure(err error) {
	j.log.Error("cannot write refusals to the history, retrying", "error", err)
}

func (j *Journal) logSuccess() { j.log.Info("the history can be written again") }

func (j *Journal) disconnect() {
	if j.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = j.conn.Close(ctx)
	j.conn = nil
}

// connect opens the connection if there is none.
func (j *Journal) connect(ctx context.Context) (err error) {
	if j.conn == nil || j.conn.IsClosed() {
		j.conn, err = j.options.Connect(ctx)
	}
	return err
}

// write writes one batch, and returns the time until the next.
func (j *Journal) write(ctx context.Context, all bool) (wait time.Duration, err error) {
	batch, dropped, wait := j.take(time.Now(), all)
	if len(batch) == 0 && dropped == 0 {
		return wait, nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if err := j.connect(ctx); err != nil {
		return 0, err
	}
	err = j.transaction(ctx, func(tx pgx.Tx) error { return fence.RecordRefusals(ctx, tx, j.options.Proxy, j.rows(batch, dropped)) })
	if err == nil {
		if j.settle(batch, dropped, false) {
			wait = min(wait, j.options.Pause)
		}
		j.logSuccess()
		return wait, nil
	}
	code := ""
	if refusal := (*pgconn.PgError)(nil); errors.As(err, &refusal) {
		code = refusal.Code
	}
	if !j.ascii && (code == characterNotInRepertoire || code == untranslatableCharacter) {
		j.ascii = true
		return 0, nil
	}
	never := strings.HasPrefix(code, dataException) || strings.HasPrefix(code, integrityConstraintViolation)
	if j.shrink(batch, never) && len(batch) > 0 {
		j.logFailure(err)
		return 0, nil
	}
	return 0, err
}

// SQLSTATEs and classes of them.
const (
	dataException                = "22"
	characterNotInRepertoire     = "22021"
	untranslatableCharacter      = "22P05"
	integrityConstraintViolation = "23"
)

// transaction runs do at READ COMMITTED, whatever the database's default is: rows that others
// delete meanwhile are no errors there.
func (j *Journal) transaction(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, j.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, do)
}

// rows returns the rows of a batch and of the number of dropped refusals.
func (j *Journal) rows(batch []*entry, dropped int64) []fence.SeenRefusal {
	now := time.Now()
	seen := make([]fence.SeenRefusal, 0, len(batch)+1)
	for _, e := range batch {
		k, v := e.kind, e.kind.verdict
		s := fence.SeenRefusal{Age: now.Sub(e.first), LastAge: now.Sub(e.last), Raised: k.raised}
		s.Event = fence.Event{
			Kind: fence.RefusalEvent, Count: e.count, State: k.state, Resource: fence.Resource(j.clean(string(v.Resource))),
			Token: v.Token, CurrentToken: v.CurrentToken, Holder: j.clean(v.Holder), Table: j.clean(v.Table), Reason: j.clean(k.message),
			Login: j.clean(k.user), Application: asciiName(k.application), Address: k.address, PID: int(int32(e.pid)), Database: j.clean(k.database), TraceParent: e.trace,
		}
		if k.shadow {
			s.Kind = fence.ShadowEvent
		}
		seen = append(seen, s)
	}
	if dropped > 0 {
		seen = append(seen, fence.SeenRefusal{Event: fence.Event{
			Kind: fence.Dropped, Count: dropped, Reason: "the queue of the proxy was full, or the database refused the rows",
		}})
	}
	return seen
}

// clean makes a session's text valid in the database's encoding.
func (j *Journal) clean(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.Map(func(r rune) rune {
		if r == 0 || j.ascii && r > 127 {
			return '?'
		}
		return r
	}, text)
}

// asciiName writes an application's name as PostgreSQL 16 and later do: with escapes for bytes
// other than printable ASCII.
func asciiName(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			fmt.Fprintf(&b, `\x%02x`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// pruneFull is the largest number of rows that one call of PruneHistory deletes; pruneTime bounds
// its repetition.
const (
	pruneFull = 10_000
	pruneTime = writeTime / 2
)

// upkeep prunes the history, and reads how many events are missing in it.
func (j *Journal) upkeep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if err := j.connect(ctx); err != nil {
		return err
	}
	for began := time.Now(); ; {
		var pruned int64
		if err := j.transaction(ctx, func(tx pgx.Tx) (err error) {
			pruned, err = fence.PruneHistory(ctx, tx)
			return err
		}); err != nil {
			return err
		}
		if pruned < pruneFull || time.Since(began) > pruneTime {
			break
		}
	}
	totals, err := fence.TotalsOfHistory(ctx, j.conn)
	if err != nil {
		return err
	}
	j.metrics.unrecorded.Set(float64(totals.Unrecorded))
	j.metrics.missed.Set(float64(totals.Dropped))
	j.logSuccess()
	return nil
}

type metrics struct {
	recorded, dropped           prometheus.Counter
	waiting, unrecorded, missed prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		recorded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_history_recorded_total", Help: "Refusals that this proxy has recorded in the history."}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_history_dropped_total", Help: "Refusals that this proxy has seen and could not record but as a number."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_history_waiting", Help: "Different refusals that wait to be recorded."}),
		unrecorded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_history_unrecorded_refusals", Help: "Refusals that the database has raised and no proxy has recorded, read every minute."}),
		missed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_history_missed_handoffs", Help: "Handoffs, ended transactions or notes of shadow mode that the database could not record, read every minute."}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.recorded, m.dropped, m.waiting, m.unrecorded, m.missed} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
