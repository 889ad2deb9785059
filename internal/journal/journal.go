// Package journal tells the database of refusals, whose own transactions can't
// record them. It keeps a bounded queue, in which refusals alike are one with a
// number, and writes it on a connection of its own. What doesn't fit in, or can't be
// written, is counted, and the number is written when that is possible again.
//
// The package imports proxy, whose refusals it is told of, and fence.
package journal

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
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
	// Pause is how long refusals alike are gathered before the first is written;
	// those that follow in RepeatPause are gathered for that time. Defaults 1s and
	// 10s.
	Pause, RepeatPause time.Duration
	// RetryMin and RetryMax bound the pause after a failed write, which doubles from
	// the one to the other. Defaults 1s and 30s.
	RetryMin, RetryMax time.Duration
	// Upkeep is how often the history is pruned and its totals are read. Default 1m.
	Upkeep time.Duration
	// Logger gets errors, once for each change. By default nothing is logged.
	Logger *slog.Logger
	// Registerer gets the metrics. By default there are none.
	Registerer prometheus.Registerer
}

// How long one write may take, and how many refusals it has at most.
const (
	writeTime = 5 * time.Second
	batchSize = 256
)

// Journal implements proxy.Refusals.
type Journal struct {
	options Options
	metrics *metrics

	mu      sync.Mutex
	waiting map[kind]*entry
	order   []*entry           // of what waits, oldest first
	unsent  []*entry           // what is being written, or was in vain
	written map[kind]time.Time // lately, and when
	dropped int64              // since the number was last written
	wake    chan struct{}

	conn    *pgx.Conn // the rest is Run's alone
	ascii   bool      // the database's encoding lacks what the texts have
	trouble string    // the error that was logged last; "" if all is well
}

// kind is what refusals alike have in common.
type kind struct {
	user, database, application, address string
	state                                fence.SQLState
	message, detail                      string
	shadow, raised                       bool
}

type entry struct {
	kind        kind
	refusal     proxy.Refusal
	first, last time.Time
	count       int64
	due         time.Time
}

// New makes a journal. It takes refusals at once, and writes them when it is run.
func New(o Options) (*Journal, error) {
	setDefault(&o.Size, 1024)
	setDefault(&o.Pause, time.Second)
	setDefault(&o.RepeatPause, 10*time.Second)
	setDefault(&o.RetryMin, time.Second)
	setDefault(&o.RetryMax, 30*time.Second)
	setDefault(&o.Upkeep, time.Minute)
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
		options: o, metrics: m, waiting: map[kind]*entry{}, written: map[kind]time.Time{}, wake: make(chan struct{}, 1),
	}, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Refused queues a refusal, or counts it as dropped if the queue is full.
func (j *Journal) Refused(r proxy.Refusal) {
	k := kind{r.User, r.Database, r.Application, "", r.State, r.Message, r.Detail, r.Shadow, r.Raised}
	if r.Address.IsValid() {
		k.address = r.Address.String()
	}
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
	e := &entry{kind: k, refusal: r, first: now, last: now, count: 1, due: now.Add(j.options.Pause)}
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

// take moves what is due, up to a batch, to what is being written, and returns all
// of that, the number of refusals that were dropped, and how long there is to wait
// for more.
func (j *Journal) take(now time.Time, all bool) (batch []*entry, dropped int64, wait time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for k, at := range j.written {
		if now.Sub(at) >= j.options.RepeatPause {
			delete(j.written, k)
		}
	}
	wait = j.options.Upkeep
	kept := j.order[:0]
	for _, e := range j.order {
		left := e.due.Sub(now)
		if (left <= 0 || all) && len(j.unsent) < batchSize {
			j.unsent = append(j.unsent, e)
			delete(j.waiting, e.kind)
			continue
		}
		wait = min(wait, max(left, 0))
		kept = append(kept, e)
	}
	clear(j.order[len(kept):])
	j.order = kept
	return j.unsent, j.dropped, wait
}

// settle is told that a batch has been written, or can't ever be.
func (j *Journal) settle(batch []*entry, dropped int64, lost bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unsent = nil
	j.metrics.waiting.Sub(float64(len(batch)))
	now := time.Now()
	var sum int64
	for _, e := range batch {
		sum += e.count
		if len(j.written) < j.options.Size {
			j.written[e.kind] = now
		}
	}
	if lost {
		j.drop(sum)
		return
	}
	j.dropped -= dropped
	j.metrics.recorded.Add(float64(sum))
}

// Left is how many refusals are neither written nor told of as dropped.
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
