// Package api serves leases over HTTP, for programs in any language: acquire, renew, release,
// list and revoke, under /v1, and the history. openapi.yaml describes it; tests compare the
// two.
//
// The server keeps no leases: the holder renews its lease by further requests, which any
// process on the same lease store can serve. It does keep open effects, which must be ended
// where they were begun.
package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/effect"
	"github.com/wirefence/wirefence/internal/series"
	"github.com/wirefence/wirefence/lockclient"
)

// Options of a Server.
type Options struct {
	// Store keeps the leases. Without it, every operation on leases answers 503 and names the
	// settings.
	Store lockclient.Store
	// StoreDown returns why the store doesn't answer, or nil if it does. By default that isn't
	// known.
	StoreDown func() error
	// Counts is the source of the tokens that the store counts; "" if it isn't known.
	Counts fence.Source
	// Sealers seal grants; none where the store itself seals them, in the only database.
	Sealers []lockclient.Sealer
	// Further are the databases besides Database in which grants are sealed, and which
	// revocations must reach, too.
	Further []lockclient.PostgresSealer
	// Unsealed permits grants that are not sealed.
	Unsealed bool
	// Source is named in fences if no seal records the source of their tokens.
	Source fence.Source
	// Database serves the status of resources, the history and revocations, with the rights of
	// wirefence_issuer. Without it, these answer 503.
	Database fence.Querier
	// Effects checks fences, for checks and effects: a separate pool with more connections
	// than MaxEffects. Without it, these operations answer 503.
	Effects effect.Database
	// Token has the bearer tokens of callers. Without it, every process that reaches a loopback
	// address has the scope lease, and requests at other addresses are refused.
	Token *Token
	// Loopback says that the admin listener is at a loopback address only.
	Loopback bool
	// About describes the process. Without it, the answer is almost empty.
	About func() About
	// Doctor examines the deployment and returns its report, as `wirefence doctor -o json`
	// prints it. Without it, the API answers 503.
	Doctor func(ctx context.Context) (json.RawMessage, error)
	// Series has recent values of the process's metrics. Without it, the answer is empty.
	Series *series.Recorder
	// TTL is the time to live of leases whose caller names none: MinTTL to MaxTTL, default 15 s.
	TTL time.Duration
	// MaxWaits is how many acquires may wait at once for a holder; default 256.
	MaxWaits int
	// MaxEffects is how many effects may be open at once; default StandardEffects.
	MaxEffects int
	// MaxStreams is how many event streams may be open at once; default 256.
	MaxStreams int
	// Logger gets grants and revocations at level Info, and failures.
	Logger *slog.Logger
	// Registerer gets the metrics.
	Registerer prometheus.Registerer
}

// The bounds of requests.
const (
	MinTTL = time.Second
	MaxTTL = time.Hour

	maxWait = time.Minute
)

// Server serves the API. It is safe for concurrent use.
type Server struct {
	options Options
	routes  http.Handler
	metrics metrics

	serving context.Context // ended by Drain
	drain   context.CancelFunc
	waits   chan struct{}      // has an element for each waiting acquire
	client  *lockclient.Client // nil without a store
	running sync.WaitGroup
	// open ends when the server closes. It is the context of work that outlives a request.
	open        context.Context
	shut        context.CancelFunc
	examination examination
	feed        *feed
	effects     *openEffects
	// streaming ends earlier than open: requests must be over before the server closes.
	streaming  context.Context
	endStreams context.CancelFunc
}

// New makes a server. Its handler is for the path /v1 and all below.
func New(o Options) (*Server, error) {
	o.TTL, o.MaxWaits = cmp.Or(o.TTL, 15*time.Second), cmp.Or(o.MaxWaits, 256)
	o.MaxEffects, o.MaxStreams = cmp.Or(o.MaxEffects, StandardEffects), cmp.Or(o.MaxStreams, standardStreams)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.TTL < MinTTL || o.TTL > MaxTTL {
		return nil, errors.New("the time to live of leases over HTTP must be from 1s to 1h")
	}
	if o.StoreDown == nil {
		o.StoreDown = func() error { return nil }
	}
	s := &Server{
		options: o, metrics: newMetrics(o.Registerer),
		waits: make(chan struct{}, o.MaxWaits), feed: newFeed(o.StoreDown), effects: newOpenEffects(o.MaxEffects),
	}
	if o.Store != nil {
		var err error
		if s.client, err = lockclient.New(o.Store, lockclient.Options{Sealers: o.Sealers, Unsealed: o.Unsealed, Source: o.Source, TTL: o.TTL, Logger: o.Logger}); err != nil {
			return nil, err
		}
	}
	s.open, s.shut = context.WithCancel(context.Background())
	s.streaming, s.endStreams = context.WithCancel(s.open)
	s.serving, s.drain = context.WithCancel(context.Background())
	s.routes = s.mux(endpoint{setting: "WIREFENCE_ADMIN_LISTEN", loopback: o.Loopback})
	return s, nil
}

// ServeHTTP serves all operations, for the admin listener.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.routes.ServeHTTP(w, r) }

// Refusal returns why every request of the admin listener will be refused, or "".
func (s *Server) Refusal() string {
	return s.refusal(endpoint{setting: "WIREFENCE_ADMIN_LISTEN", loopback: s.options.Loopback})
}

// Drain ends the acquires that wait, with 503, and refuses further ones, and effects: their
// callers find another server. The rest is served as before.
func (s *Server) Drain() { s.drain() }

// EndStreams ends the event streams, which would delay the end of the listener.
func (s *Server) EndStreams() { s.endStreams() }

// Close drains, ends the open effects, and waits until leases that no caller got are released,
// or returns the context's error. No request may come any more.
func (s *Server) Close(ctx context.Context) error {
	s.Drain()
	s.shut()
	over := make(chan struct{})
	go func() {
		s.effects.closeAll(errors.New("the process that kept it has ended"))
		s.running.Wait()
		if s.client != nil {
			_ = s.client.Close(ctx) // logs its failures
		}
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
