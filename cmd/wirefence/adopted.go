package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/relay"
	"github.com/wirefence/wirefence/proxy"
)

// AdoptSettings name the locks that the application takes by itself.
type AdoptSettings struct {
	LeaseFrom   string `env:"WIREFENCE_LEASE_FROM" group:"Leases" type:"lock,..." help:"the locks that the application takes [by itself](../howto/redis-lock.md), each with the resource whose lease follows it, separated by commas: ~redis:KEY=RESOURCE~. Needs ~WIREFENCE_REDIS_LISTEN~, ~WIREFENCE_REDIS_URL~ and ~WIREFENCE_DATABASE_URL~"`
	LeaseScope  string `env:"WIREFENCE_LEASE_SCOPE" group:"Leases" oneof:"guards|all" envDefault:"guards" help:"what the leases of ~WIREFENCE_LEASE_FROM~ count for: ~guards~: tables that are protected with their resources, and nothing else; ~all~: all that the application does, as with ~WIREFENCE_LEASE~"`
	RedisListen string `env:"WIREFENCE_REDIS_LISTEN" group:"Connections" type:"address" help:"address at which the application reaches the Redis of ~WIREFENCE_REDIS_URL~ through this proxy, which follows its locks there: ~host:port~ or the path of a Unix socket"`
}

// adopted is the leases that follow the application's own locks. A nil one is that of a proxy without
// WIREFENCE_LEASE_FROM.
type adopted struct {
	book  adopt.Book
	first fence.Resource
	relay *relay.Relay
	log   *slog.Logger
}

// newAdopted prepares what follows the locks. It doesn't connect yet.
func newAdopted(cfg proxySettings, leases *leases, registry prometheus.Registerer, log *slog.Logger) (*adopted, error) {
	locks, err := adopt.ParseFrom(cfg.LeaseFrom)
	switch {
	case err != nil:
		return nil, fmt.Errorf("WIREFENCE_LEASE_FROM: %w", err)
	case len(locks) == 0 && cfg.RedisListen != "":
		return nil, errors.New("WIREFENCE_REDIS_LISTEN needs WIREFENCE_LEASE_FROM, which names the locks")
	case len(locks) == 0:
		return nil, nil
	case len(locks.Of(adopt.Redis)) < len(locks):
		return nil, errors.New("WIREFENCE_LEASE_FROM: this version follows locks in Redis alone, as in redis:KEY=RESOURCE")
	case cfg.RedisListen == "" || cfg.RedisURL == "" || cfg.DatabaseURL == "":
		return nil, errors.New("WIREFENCE_LEASE_FROM needs WIREFENCE_REDIS_LISTEN, where the application reaches Redis, WIREFENCE_REDIS_URL, " +
			"where Redis is, and WIREFENCE_DATABASE_URL, where its locks are sealed")
	case cfg.LeaseOf != "" && cfg.LeaseScope == "all":
		return nil, errors.New("WIREFENCE_LEASE and WIREFENCE_LEASE_SCOPE=all exclude each other: a statement runs under one of the leases")
	case cfg.Mode == proxy.Off:
		return nil, errors.New("WIREFENCE_LEASE_FROM has no effect with WIREFENCE_MODE=off")
	}
	if leases == nil {
		return nil, nil // they couldn't be opened, which is reported
	}
	a := &adopted{first: locks[0].Resource, log: log}
	id := rand.Text()
	o := relay.Options{
		Listen: cfg.RedisListen, Upstream: string(cfg.RedisURL), Locks: map[string]fence.Resource{}, Book: &a.book,
		ID: id, Holder: cfg.processName() + "/" + id, Logger: log, Registerer: registry,
	}
	for _, lock := range locks {
		o.Locks[lock.Name] = lock.Resource
	}
	for _, d := range leases.databases {
		o.Sealers = append(o.Sealers, d.sealer(relay.Source))
	}
	if a.relay, err = relay.New(o); err != nil {
		return nil, fmt.Errorf("WIREFENCE_REDIS_LISTEN: %w", err)
	}
	return a, nil
}

// options sets those of the proxy.
func (a *adopted) options(o *proxy.Options, scope string) {
	switch {
	case a == nil:
	case scope == "all":
		o.Lease = a
	default:
		o.Guarded = a.Fence
	}
}

// Fence, Resource, Holder and Changed are those of proxy.Lease.
func (a *adopted) Fence() string            { return a.book.Fence() }
func (a *adopted) Resource() fence.Resource { return a.first }
func (a *adopted) Holder() string           { return "" }
func (a *adopted) Changed() <-chan struct{} { return a.book.Changed() }

// listen opens the relay.
func (a *adopted) listen(ctx context.Context) error {
	if a == nil {
		return nil
	}
	if err := a.relay.Listen(ctx); err != nil {
		return fmt.Errorf("WIREFENCE_REDIS_LISTEN: %w", err)
	}
	a.log.Info("passing connections to Redis on", "listen", a.relay.Addr().String())
	return nil
}

// serve serves the relay until end is called, which lets its connections end.
func (a *adopted) serve() (end func()) {
	if a == nil {
		return func() {}
	}
	served := make(chan error, 1)
	go func() { served <- a.relay.Serve() }()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
		defer cancel()
		if err := cmp.Or(a.relay.Shutdown(ctx), <-served); err != nil {
			a.log.Warn("cannot end the connections to Redis in time", "error", err)
		}
	}
}
