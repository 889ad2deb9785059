// Package journal records refusals in the database, since the refused transactions can't. It
// keeps a bounded queue, in which equal refusals are one entry with a count, and writes it on
// its own connection. It counts the refusals that don't fit in or can't be written, and
// records their number when it can write again.
//
// The package imports proxy, for its refusals, fence and internal/quietlog.
package journal

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/quietlog"
	"github.com/wirefence/wirefence/proxy"
)

// Options of a Journal. The zero value of a field means its default.
type Options struct {
	// Connect opens a connection with the rights of wirefence_issuer. Required.
	Connect func(ctx context.Context) (*pgx.Conn, error)
	// Proxy is the name under which this process records. Required.
	Proxy string
	// Size is how many different refusals may wait to be written. Default 1024.
	Size int
	// Pause is how long equal refusals are gathered before the first is written;
	// those that follow within RepeatPause are gathered for that time. Defaults 1s and
	// 10s.
	Pause, RepeatPause time.Duration
	// RetryMin and RetryMax bound the pause after a failed write, which doubles from
	// the one to the other. Defaults 1s and 30s.
	RetryMin, RetryMax time.Duration
	// Upkeep is how often the history is pruned and its totals are read. Default 1m.
	Upkeep time.Duration
	// Logger gets errors, at growing intervals. By default nothing is logged.
	Logger *slog.Logger
	// Registerer gets the metrics. By default there are none.
	Registerer prometheus.Registerer
}

// The bounds of one write: its time, its number of refusals, and the bytes of their texts.
const (
	writeTime  = 5 * time.Second
	batchSize  = 256
	batchBytes = 256 << 10
)

// The lengths to which a refusal's texts are cut, in bytes: those of PostgreSQL for names of
// users, databases and applications, and those of the history for the others.
const (
	maxName     = 63
	maxMessage  = 1000
	maxResource = 255
	maxHolder   = 500
)

// Journal implements proxy.Refusals.
type Journal struct {
	options Options
	metrics *metrics

	mu      sync.Mutex
	waiting map[kind]*entry
	order   []*entry           // those of waiting, oldest first
	unsent  []*entry           // are being written, or a write of them failed
	limit   int                // how many of unsent are written at once
	tries   int                // failed writes of the first of unsent alone
	written map[kind]time.Time // the last write of kinds that were written lately
	dropped int64              // since their number was last written
	wake    chan struct{}

	conn  *pgx.Conn    // the rest is Run's alone
	ascii bool         // write ASCII only: the database's encoding lacks characters
	log   *slog.Logger // whether the history can be written
}

// kind has the fields in which equal refusals agree. Its texts are cut, since a client can raise
// refusals of any length.
type kind struct {
	user, database, application, address string
	state                                fence.SQLState
	message                              string
	verdict                              proxy.Verdict
	shadow, raised                       bool
}

func kindOf(r proxy.Refusal) kind {
	names, v := r.Cut(maxName), r.Verdict()
	k := kind{
		user: names.User, database: names.Database, application: names.Application, state: r.State, message: r.Cut(maxMessage).WithoutKeys().Message,
		shadow: r.Shadow, raised: r.Raised,
	}
	k.verdict = proxy.Verdict{
		Resource: fence.Resource(cut(string(v.Resource), maxResource)), Token: v.Token, CurrentToken: v.CurrentToken,
		Holder: cut(v.Holder, maxHolder), Table: cut(v.Table, maxHolder),
	}
	if r.Address.IsValid() {
		k.address = r.Address.String()
	}
	return k
}

// cut cuts a text as Refusal.Cut does.
func cut(text string, size int) string { return proxy.Refusal{Message: text}.Cut(size).Message }

// size is roughly the number of bytes of the texts.
func (k kind) size() int {
	return len(k.user) + len(k.database) + len(k.application) + len(k.message) + len(k.verdict.Resource) + len(k.verdict.Holder) + len(k.verdict.Table)
}

type entry struct {
	kind        kind
	pid         uint32 // of the first refusal
	trace       string // the traceparent of the first refusal
	first, last time.Time
	count       int64
	due         time.Time
}

// New returns a journal. It takes refusals at once; Run writes them.
func New(o Options) (*Journal, error) {
	o.Size = cmp.Or(o.Size, 1024)
	o.Pause, o.RepeatPause = cmp.Or(o.Pause, time.Second), cmp.Or(o.RepeatPause, 10*time.Second)
	o.RetryMin, o.RetryMax = cmp.Or(o.RetryMin, time.Second), cmp.Or(o.RetryMax, 30*time.Second)
	o.Upkeep = cmp.Or(o.Upkeep, time.Minute)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Connect == nil || o.Proxy == "" {
		return nil, errors.New("a journal needs a connection and a name")
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	return &Journal{
		options: o, metrics: m, log: quietlog.Outage(o.Logger), limit: batchSize, waiting: map[kind]*entry{}, written: map[kind]time.Time{}, wake: make(chan struct{}, 1),
	}, nil
}

// Refused queues a refusal, or counts it as dropped if the queue is full.
func (j *Journal) Refused(r proxy.Refusal) {
	k := kindOf(r)
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.waiting[k]; e != nil {
		e.count++
		e.last = now
		return
	}
	if len(j.order)+len(j.unsent) >= j.options.Size {
		j.drop(1)
		return
	}
	e := &entry{kind: k, pid: r.PID, trace: r.TraceParent, first: now, last: now, count: 1, due: now.Add(j.options.Pause)}
	if at, ok := j.written[k]; ok && now.Sub(at) < j.options.RepeatPause {
		e.due = at.Add(j.options.RepeatPause)
	}
	j.waiting[k] = e
	j.order = append(j.order, e)
	j.metrics.waiting.Inc()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// drop is called with the lock held.
func (j *Journal) drop(n int64) {
	j.dropped += n
	j.metrics.dropped.Add(float64(n))
}

// take moves due entries to unsent, up to a batch. It returns the first of them, up to limit,
// the number of dropped refusals, and the time until more are due.
func (j *Journal) take(now time.Time, all bool) (batch []*entry, dropped int64, wait time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for k, at := range j.written {
		if now.Sub(at) >= j.options.RepeatPause {
			delete(j.written, k)
		}
	}
	wait = j.options.Upkeep
	size := 0
	for _, e := range j.unsent {
		size += e.kind.size()
	}
	kept := j.order[:0]
	for _, e := range j.order {
		left := e.due.Sub(now)
		if (left <= 0 || all) && len(j.unsent) < batchSize && size < batchBytes {
			j.unsent = append(j.unsent, e)
			size += e.kind.size()
			delete(j.waiting, e.kind)
			continue
		}
		wait = min(wait, max(left, 0))
		kept = append(kept, e)
	}
	clear(j.order[len(kept):])
	j.order = kept
	if len(j.unsent) > j.limit {
		return j.unsent[:j.limit], j.dropped, 0
	}
	return j.unsent, j.dropped, wait
}

// settle removes a batch that was written, or, if lost, is dropped. It reports whether there are
// dropped refusals whose number wasn't in the batch.
func (j *Journal) settle(batch []*entry, dropped int64, lost bool) (more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.metrics.waiting.Sub(float64(len(batch)))
	now := time.Now()
	var sum int64
	for _, e := range batch {
		sum += e.count
		if len(j.written) < j.options.Size {
			j.written[e.kind] = now
		}
	}
	j.unsent = slices.Delete(j.unsent, 0, len(batch))
	j.limit, j.tries = min(2*j.limit, batchSize), 0
	if lost {
		j.drop(sum)
		return true
	}
	j.dropped -= dropped
	j.metrics.recorded.Add(float64(sum))
	return j.dropped > 0
}

// maxTries is the number of failed writes to a reachable database after which a refusal is
// dropped.
const maxTries = 5

// shrink handles a failed write to a reachable database: it halves the next batch, so that an
// entry that can't be written doesn't delay the others. A single entry is dropped after
// maxTries, or at once if it can never be written. shrink reports whether to retry at once.
func (j *Journal) shrink(batch []*entry, never bool) (atOnce bool) {
	switch {
	case len(batch) > 1:
		j.mu.Lock()
		defer j.mu.Unlock()
		j.limit, j.tries = len(batch)/2, 0
	case len(batch) == 1:
		if j.tries++; never || j.tries >= maxTries {
			j.settle(batch, 0, true)
		}
	}
	return never
}

// Left returns the number of refusals that are not recorded, including dropped ones.
func (j *Journal) Left() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	left := j.dropped
	for _, all := range [][]*entry{j.order, j.unsent} {
		for _, e := range all {
			left += e.count
		}
	}
	return left
}
