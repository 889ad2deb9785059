package metrics

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/quietlog"
	"github.com/wirefence/wirefence/lockclient"
)

// Options of Resources. The zero value of a field means its default.
type Options struct {
	// Pool has connections with the rights of wirefence_issuer, one of which is used in each
	// round. Required.
	Pool *pgxpool.Pool
	// Names are the resources with their own label. Required.
	Names *Names
	// Looker reports whether a lease is held. By default only the leases in the database are
	// known.
	Looker lockclient.Looker
	// Source is the source of the tokens that the Looker's store counts; "" for the database.
	Source fence.Source
	// Interval is how often the database is read. Default 10s.
	Interval time.Duration
	// Logger gets errors, at growing intervals. By default nothing is logged.
	Logger *slog.Logger
}

// Resources reads resources and handoffs of the database periodically. It implements
// prometheus.Collector.
type Resources struct {
	options  Options
	known    map[fence.Resource]bool // in the database; this and the next two are Run's alone
	log      *slog.Logger            // of the database's outages
	handoffs handoffs

	mu     sync.Mutex
	asked  bool
	last   *reading // nil: the last reading failed
	held   map[fence.Resource]bool
	events map[event]tally
}

// NewResources makes a reader, which reads nothing before Run.
func NewResources(o Options) (*Resources, error) {
	if o.Pool == nil || o.Names == nil {
		return nil, errors.New("resources need a connection and names")
	}
	o.Interval = cmp.Or(o.Interval, 10*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Resources{options: o, known: map[fence.Resource]bool{}, log: quietlog.Outage(o.Logger)}, nil
}

// Run reads until ctx ends. It is called once.
func (r *Resources) Run(ctx context.Context) {
	// A round between two looks of Stores.Watch, which begin with the first, finds a connection idle.
	ticks := time.NewTicker(r.options.Interval + lookPause/2)
	defer ticks.Stop()
	for first := true; ctx.Err() == nil; first = false {
		r.round(ctx)
		select {
		case <-ticks.C:
			if first {
				ticks.Reset(r.options.Interval)
			}
		case <-ctx.Done():
		}
	}
}

// roundTime bounds reading the database in one round, and again asking for leases.
const roundTime = 5 * time.Second

func (r *Resources) round(ctx context.Context) {
	last, err := r.read(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.log.Error("cannot read the resources from the database, retrying", quietlog.ErrorAttrs(err)...)
	} else {
		r.log.Info("resources can be read from the database again")
	}
	held := r.readLeases(ctx, last)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked, r.last, r.held, r.events = true, last, held, maps.Clone(r.handoffs.total)
}

func (r *Resources) read(ctx context.Context) (*reading, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	pooled, err := r.options.Pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer pooled.Release()
	conn := pooled.Conn()
	met, room := r.options.Names.all()
	last, err := read(ctx, conn, r.representable(conn, met), room)
	if err == nil {
		for _, one := range last.resources {
			r.known[one.name] = true
			r.options.Names.Label(one.name)
		}
		met, _ = r.options.Names.all()
		err = r.handoffs.count(ctx, conn, r.representable(conn, met))
	}
	if err != nil {
		return nil, err
	}
	return last, nil
}

// representable returns the names that the database's encoding can represent.
func (r *Resources) representable(conn *pgx.Conn, names []fence.Resource) (all []fence.Resource) {
	anything := conn.PgConn().ParameterStatus("server_encoding") == "UTF8"
	for _, name := range names {
		if anything || r.known[name] || isASCII(name) {
			all = append(all, name)
		}
	}
	return all
}

func isASCII(name fence.Resource) bool {
	for _, c := range []byte(name) {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

// readLeases returns for each resource whether its lease is held, if that is known.
func (r *Resources) readLeases(ctx context.Context, last *reading) map[fence.Resource]bool {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	held := map[fence.Resource]bool{}
	storeAnswers := r.options.Looker != nil
	for _, one := range last.all() {
		switch {
		case one.source == fence.SourcePostgres:
			held[one.name] = one.leased
		case one.source != "" && one.source == r.options.Source && storeAnswers:
			attempt, err := r.options.Looker.Look(ctx, one.name)
			if storeAnswers = err == nil; storeAnswers {
				held[one.name] = attempt.Holder != ""
			}
		}
	}
	return held
}

func (r *reading) all() []resource {
	if r == nil {
		return nil
	}
	return r.resources
}

// The metrics of resources and of the database.
var (
	byResource = []string{"resource"}

	tokenDesc    = prometheus.NewDesc("wirefence_resource_token", "The last token of a resource.", byResource, nil)
	grantedDesc  = prometheus.NewDesc("wirefence_resource_granted_timestamp_seconds", "When the last token was recorded, by the database's clock.", byResource, nil)
	heldDesc     = prometheus.NewDesc("wirefence_resource_held", "1 while the lease of a resource is held, by whichever process.", byResource, nil)
	writersDesc  = prometheus.NewDesc("wirefence_resource_writers", "Sessions that keep a takeover of a resource waiting, by an open transaction or a hold.", byResource, nil)
	handoffsDesc = prometheus.NewDesc("wirefence_resource_handoffs_total", "Times that a resource went to another holder, seen in the history since this process began.", byResource, nil)
	revokedDesc  = prometheus.NewDesc("wirefence_resource_revocations_total", "Times that an operator revoked a resource, seen in the history since this process began.", byResource, nil)
	waitsDesc    = prometheus.NewDesc("wirefence_handoff_seconds", "Time that handoffs took in the database, which is mostly the wait for older transactions, seen in the history since this process began.", nil, nil)
	endedDesc    = prometheus.NewDesc("wirefence_resource_ended_sessions_total", "Sessions that a takeover of a resource ended, with their transactions, seen in the history since this process began.", byResource, nil)

	upDesc       = prometheus.NewDesc("wirefence_database_up", "1 if the last reading of the database's resources succeeded.", nil, nil)
	primaryDesc  = prometheus.NewDesc("wirefence_database_primary", "1 if the server of that database is a primary, 0 for a standby.", nil, nil)
	timelineDesc = prometheus.NewDesc("wirefence_database_timeline", "The timeline of that server, if it is a primary.", nil, nil)

	counted = map[fence.EventKind]*prometheus.Desc{fence.Handoff: handoffsDesc, fence.Revocation: revokedDesc, fence.HolderEnded: endedDesc}
)

// Describe implements prometheus.Collector.
func (r *Resources) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{tokenDesc, grantedDesc, heldDesc, writersDesc, handoffsDesc, revokedDesc, endedDesc, waitsDesc, upDesc, primaryDesc, timelineDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (r *Resources) Collect(out chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.asked {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(upDesc, truth(r.last != nil))
	labels := map[string]bool{Other: true}
	for _, one := range r.last.all() {
		label := r.options.Names.Label(one.name)
		if label == Other {
			continue
		}
		labels[label] = true
		gauge(tokenDesc, float64(one.token), label)
		gauge(writersDesc, float64(one.writers), label)
		if one.granted != nil {
			gauge(grantedDesc, float64(one.granted.UnixMicro())/1e6, label)
		}
		if held, known := r.held[one.name]; known {
			gauge(heldDesc, truth(held), label)
		}
	}
	r.collectHandoffs(out, labels)
	if r.last == nil || r.last.place == nil {
		return
	}
	gauge(primaryDesc, truth(r.last.place.Primary))
	if r.last.place.Primary {
		gauge(timelineDesc, float64(r.last.place.Timeline))
	}
}

// collectHandoffs exports a zero for labels without events, so that a rate shows the first
// event.
func (r *Resources) collectHandoffs(out chan<- prometheus.Metric, labels map[string]bool) {
	type series struct {
		label string
		kind  fence.EventKind
	}
	rows := map[series]int64{}
	for e, n := range r.events {
		labels[e.label] = true
		rows[series{e.label, e.kind}] += n.rows
	}
	for label := range labels {
		for kind, desc := range counted {
			out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(rows[series{label, kind}]), label)
		}
	}
	out <- waits(r.events)
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
