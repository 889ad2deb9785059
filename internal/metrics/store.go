package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/quietlog"
	"github.com/wirefence/wirefence/lockclient"
)

// Stores measures the calls of a process's lease stores, all on one server, and watches whether
// the server answers. It implements prometheus.Collector.
type Stores struct {
	up      *prometheus.Desc
	seconds *prometheus.HistogramVec
	errors  *prometheus.CounterVec

	mu    sync.Mutex
	known bool  // Watch has asked the store
	down  error // why the last request of Watch failed
}

// NewStores returns Stores that it has registered. A registry has one.
func NewStores(r prometheus.Registerer) (*Stores, error) {
	s := &Stores{
		up: prometheus.NewDesc("wirefence_store_up", "1 if the lease store answered the last look.", nil, nil),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "wirefence_store_request_seconds", Help: "Time that calls of the lease store took, by operation.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8)}, []string{"operation"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wirefence_store_errors_total", Help: "Calls of the lease store that failed, by operation."}, []string{"operation"}),
	}
	for _, operation := range []string{"acquire", "renew", "release", "raise", "look"} {
		s.seconds.WithLabelValues(operation)
		s.errors.WithLabelValues(operation)
	}
	return s, r.Register(s)
}

// Describe implements prometheus.Collector.
func (s *Stores) Describe(out chan<- *prometheus.Desc) {
	out <- s.up
	s.seconds.Describe(out)
	s.errors.Describe(out)
}

// Collect implements prometheus.Collector.
func (s *Stores) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	if s.known {
		out <- prometheus.MustNewConstMetric(s.up, prometheus.GaugeValue, truth(s.down == nil))
	}
	s.mu.Unlock()
	s.seconds.Collect(out)
	s.errors.Collect(out)
}

// measure measures a call that ends now, unless its caller cancelled it.
func (s *Stores) measure(operation string, began time.Time, err *error) {
	if errors.Is(*err, context.Canceled) {
		return
	}
	s.seconds.WithLabelValues(operation).Observe(time.Since(began).Seconds())
	if *err != nil {
		s.errors.WithLabelValues(operation).Inc()
	}
}

// Down returns why the last request of Watch failed. It is nil if the store answers, and before
// the first request.
func (s *Stores) Down() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

// Watch notices a store that hangs within the sum of the two.
const (
	lookPause = 2 * time.Second
	lookTime  = 2 * time.Second
)

// watched is the resource for which Watch asks.
const watched fence.Resource = "wirefence"

// Watch asks the store periodically until ctx ends. It logs failures at growing intervals, and
// when the store answers again.
func (s *Stores) Watch(ctx context.Context, store lockclient.Looker, log *slog.Logger) {
	log = quietlog.Outage(log)
	ticks := time.NewTicker(lookPause)
	defer ticks.Stop()
	for {
		err := lookOnce(ctx, store)
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.known, s.down = true, err
		s.mu.Unlock()
		if err != nil {
			log.Error("the lease store does not answer: no lease can be granted or renewed", quietlog.ErrorAttrs(err)...)
		} else {
			log.Info("the lease store answers again")
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
	}
}

func lookOnce(ctx context.Context, store lockclient.Looker) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	_, err := store.Look(ctx, watched)
	switch {
	case refuses(err):
		return nil
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("no answer within %v", lookTime)
	}
	return err
}

// refuses reports whether an error is a refusal by a PostgreSQL server that works.
func refuses(err error) bool {
	answer := (*pgconn.PgError)(nil)
	if !errors.As(err, &answer) {
		return false
	}
	for _, class := range []string{"08", "53", "57", "58", "XX"} { // connections, resources, intervention, the system, bugs
		if strings.HasPrefix(answer.Code, class) {
			return false
		}
	}
	return true
}

// Whole is implemented by every store of this module.
type Whole interface {
	lockclient.Store
	lockclient.Notifier
	lockclient.Looker
}

// Store returns the store with its calls measured. It keeps the store's other interfaces,
// except for the one that reads its counter.
func (s *Stores) Store(store Whole) Whole {
	m := measured{Whole: store, stores: s}
	if record, ok := store.(lockclient.Record); ok {
		return recording{m, record}
	}
	return m
}

type measured struct {
	Whole
	stores *Stores
}

type recording struct {
	measured
	lockclient.Record
}

func (m measured) Acquire(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (attempt lockclient.Attempt, err error) {
	defer m.stores.measure("acquire", time.Now(), &err)
	return m.Whole.Acquire(ctx, resource, grant, ttl)
}

func (m measured) Renew(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (held bool, err error) {
	defer m.stores.measure("renew", time.Now(), &err)
	return m.Whole.Renew(ctx, resource, grant, ttl)
}

func (m measured) Release(ctx context.Context, resource fence.Resource, grant string) (held bool, err error) {
	defer m.stores.measure("release", time.Now(), &err)
	return m.Whole.Release(ctx, resource, grant)
}

func (m measured) Free(ctx context.Context, resource fence.Resource, holder string) (held bool, err error) {
	defer m.stores.measure("release", time.Now(), &err)
	return m.Whole.Free(ctx, resource, holder)
}

func (m measured) Raise(ctx context.Context, resource fence.Resource, token fence.Token) (err error) {
	defer m.stores.measure("raise", time.Now(), &err)
	return m.Whole.Raise(ctx, resource, token)
}

// EndsWithProcess implements lockclient.Transient.
func (m measured) EndsWithProcess() bool {
	transient, ok := m.Whole.(lockclient.Transient)
	return ok && transient.EndsWithProcess()
}

func (m measured) Look(ctx context.Context, resource fence.Resource) (attempt lockclient.Attempt, err error) {
	defer m.stores.measure("look", time.Now(), &err)
	return m.Whole.Look(ctx, resource)
}
