package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/adopt/advisory"
	"github.com/wirefence/wirefence/internal/relay"
	"github.com/wirefence/wirefence/proxy"
)

// AdoptSettings name the locks that the application takes by itself.
type AdoptSettings struct {
	LeaseFrom   string `env:"WIREFENCE_LEASE_FROM" group:"Leases" type:"lock,..." help:"the locks that the application takes by itself, each with the resource whose lease follows it, separated by commas: ~advisory:42=RESOURCE~ or ~advisory:7,42=RESOURCE~ for an [advisory lock](../howto/advisory-lock.md), which needs ~WIREFENCE_DATABASE_URL~; ~redis:KEY=RESOURCE~ for a [key in Redis](../howto/redis-lock.md), which needs ~WIREFENCE_REDIS_LISTEN~ and ~WIREFENCE_REDIS_URL~, too"`
	LeaseScope  string `env:"WIREFENCE_LEASE_SCOPE" group:"Leases" oneof:"guards|all" envDefault:"guards" help:"what the leases of ~WIREFENCE_LEASE_FROM~ count for: ~guards~: tables that are protected with their resources, and nothing else; ~all~: all that the application does, as with ~WIREFENCE_LEASE~"`
	RedisListen string `env:"WIREFENCE_REDIS_LISTEN" group:"Connections" type:"address" help:"address at which the application reaches the Redis of ~WIREFENCE_REDIS_URL~ through this proxy, which follows its locks there: ~host:port~ or the path of a Unix socket"`
}

// adopted is the leases that follow the application's own locks. A nil one is that of a proxy without
// WIREFENCE_LEASE_FROM.
type adopted struct {
	book     adopt.Book
	first    fence.Resource
	relay    *relay.Relay       // nil without locks in Redis
	advisory *advisory.Follower // nil without advisory locks
	log      *slog.Logger

	serving sync.WaitGroup // the relay
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
	case len(locks.Of(adopt.Redis))+len(locks.Of(adopt.Advisory)) < len(locks):
		return nil, errors.New("WIREFENCE_LEASE_FROM: this version follows advisory locks and locks in Redis, as in advisory:42=RESOURCE and redis:KEY=RESOURCE")
	case cfg.DatabaseURL == "":
		return nil, errors.New("WIREFENCE_LEASE_FROM needs WIREFENCE_DATABASE_URL, where the application's locks are sealed")
	case len(locks.Of(adopt.Redis)) > 0 && (cfg.RedisListen == "" || cfg.RedisURL == ""):
		return nil, errors.New("WIREFENCE_LEASE_FROM needs WIREFENCE_REDIS_LISTEN, where the application reaches Redis, and WIREFENCE_REDIS_URL, where Redis is")
	case len(locks.Of(adopt.Redis)) == 0 && cfg.RedisListen != "":
		return nil, errors.New("WIREFENCE_REDIS_LISTEN needs a lock in Redis in WIREFENCE_LEASE_FROM, as in redis:KEY=RESOURCE")
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
	holder := cfg.processName() + "/" + id
	if some := locks.Of(adopt.Advisory); len(some) > 0 {
		a.advisory = advisory.New(advisory.Options{Locks: some, Pool: leases.databases[0].Pool, Book: &a.book, Holder: holder, Logger: log})
		for _, d := range leases.databases[1:] {
			a.advisory.Sealers = append(a.advisory.Sealers, d.sealer(advisory.Source))
		}
	}
	if some := locks.Of(adopt.Redis); len(some) > 0 {
		o := relay.Options{
			Listen: cfg.RedisListen, Upstream: string(cfg.RedisURL), Locks: map[string]fence.Resource{}, Book: &a.book,
			ID: id, Holder: holder, Logger: log, Registerer: registry,
		}
		for _, lock := range some {
			o.Locks[lock.Name] = lock.Resource
		}
		for _, d := range leases.databases {
			o.Sealers = append(o.Sealers, d.sealer(relay.Source))
		}
		if a.relay, err = relay.New(o); err != nil {
			return nil, fmt.Errorf("WIREFENCE_REDIS_LISTEN: %w", err)
		}
	}
	return a, nil
}

// options sets those of the proxy.
func (a *adopted) options(o *proxy.Options, scope string) {
	if a == nil {
		return
	}
	if scope == "all" {
		o.Lease = a
	} else {
		o.Guarded = a.Fence
	}
	if a.advisory != nil {
		o.Locks = func(pid uint32, database string) proxy.SessionLocks {
			if s := a.advisory.Session(pid, database); s != nil {
				return s
			}
			return nil
		}
	}
}

// Fence, Resource, Holder and Changed are those of proxy.Lease.
func (a *adopted) Fence() string            { return a.book.Fence() }
func (a *adopted) Resource() fence.Resource { return a.first }
func (a *adopted) Holder() string           { return "" }
func (a *adopted) Changed() <-chan struct{} { return a.book.Changed() }

// awaits is the Redis behind the relay, which opens its listener once that can be used.
func (a *adopted) awaits() []*awaited {
	if a == nil || a.relay == nil {
		return nil
	}
	return []*awaited{{
		look: func(ctx context.Context) error {
			if err := a.relay.Listen(ctx); err != nil {
				return fmt.Errorf("WIREFENCE_REDIS_LISTEN: %w", err)
			}
			a.log.Info("passing connections to Redis on", "listen", a.relay.Addr().String())
			a.serving.Go(func() {
				if err := a.relay.Serve(); err != nil {
					a.log.Error("cannot accept connections to Redis any more", "error", err)
				}
			})
			return nil
		},
		mayComeYet: func(err error) bool { return errors.Is(err, relay.ErrNotReady) },
		lacks:      "Redis can't be reached or doesn't take commands yet",
		has:        "Redis takes commands",
		log:        a.log,
	}}
}

// end ends the relay, and lets its connections end.
func (a *adopted) end() {
	if a == nil || a.relay == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	if err := a.relay.Shutdown(ctx); err != nil {
		a.log.Warn("cannot end the connections to Redis in time", "error", err)
	}
	a.serving.Wait()
}
