package metrics

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// Stores measures the calls of a process's lease stores, which are one and the same
// server. It implements prometheus.Collector.
type Stores struct {
	state   atomic.Int32 // of the last call
	up      *prometheus.Desc
	seconds *prometheus.HistogramVec
	errors  *prometheus.CounterVec
}

// The states of a store. It has none before the first call.
const (
	isUp int32 = iota + 1
	isDown
)

// NewStores returns the registry's Stores, which it makes and registers once.
func NewStores(r prometheus.Registerer) (*Stores, error) {
	s := &Stores{
		up: prometheus.NewDesc("wirefence_store_up", "1 if the lease store answered the last call.", nil, nil),
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
	err := r.Register(s)
	if already := (prometheus.AlreadyRegisteredError{}); errors.As(err, &already) {
		if former, ok := already.ExistingCollector.(*Stores); ok {
			return former, nil
		}
	}
	return s, err
}

// Describe implements prometheus.Collector.
func (s *Stores) Describe(out chan<- *prometheus.Desc) {
	out <- s.up
	s.seconds.Describe(out)
	s.errors.Describe(out)
}

// Collect implements prometheus.Collector.
func (s *Stores) Collect(out chan<- prometheus.Metric) {
	if state := s.state.Load(); state != 0 {
		out <- prometheus.MustNewConstMetric(s.up, prometheus.GaugeValue, truth(state == isUp))
	}
	s.seconds.Collect(out)
	s.errors.Collect(out)
}

// called measures a call that has ended, unless its caller cancelled it.
func (s *Stores) called(operation string, began time.Time, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	s.seconds.WithLabelValues(operation).Observe(time.Since(began).Seconds())
	if err == nil || refuses(err) {
		s.state.Store(isUp)
	} else {
		s.state.Store(isDown)
	}
	if err != nil {
		s.errors.WithLabelValues(operation).Inc()
	}
}

// refuses reports whether an error is the answer of a PostgreSQL server that works.
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

func (m measured) Acquire(ctx context.Context, resource fence.Resource, holder string, ttl time.Duration) (lockclient.Attempt, error) {
	began := time.Now()
	attempt, err := m.Whole.Acquire(ctx, resource, holder, ttl)
	m.stores.called("acquire", began, err)
	return attempt, err
}

func (m measured) Renew(ctx context.Context, resource fence.Resource, holder string, ttl time.Duration) (held bool, err error) {
	began := time.Now()
	held, err = m.Whole.Renew(ctx, resource, holder, ttl)
	m.stores.called("renew", began, err)
	return held, err
}

func (m measured) Release(ctx context.Context, resource fence.Resource, holder string) (held bool, err error) {
	began := time.Now()
	held, err = m.Whole.Release(ctx, resource, holder)
	m.stores.called("release", began, err)
	return held, err
}

func (m measured) Raise(ctx context.Context, resource fence.Resource, token fence.Token) error {
	began := time.Now()
	err := m.Whole.Raise(ctx, resource, token)
	m.stores.called("raise", began, err)
	return err
}

func (m measured) Look(ctx context.Context, resource fence.Resource) (lockclient.Attempt, error) {
	began := time.Now()
	attempt, err := m.Whole.Look(ctx, resource)
	m.stores.called("look", began, err)
	return attempt, err
}
