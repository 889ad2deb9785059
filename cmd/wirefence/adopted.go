package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/adopt/advisory"
	"github.com/wirefence/wirefence/internal/adopt/leaderelection"
	"github.com/wirefence/wirefence/internal/adopt/rows"
	adoptseal "github.com/wirefence/wirefence/internal/adopt/seal"
	"github.com/wirefence/wirefence/internal/apiserver"
	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/relay"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/proxy"
)

// AdoptSettings name the locks that the application takes by itself.
type AdoptSettings struct {
	LeaseFrom   string `env:"WIREFENCE_LEASE_FROM" group:"Leases" type:"lock,..." help:"the locks that the application takes by itself, each with the resource whose lease follows it, separated by commas: ~advisory:42=RESOURCE~ or ~advisory:7,42=RESOURCE~ for an [advisory lock](../howto/advisory-lock.md); ~row:CLASS(KEY)=RESOURCE~ for a [row of a lock table](../howto/lock-table.md), such as ShedLock's; ~redis:KEY=RESOURCE~ for a [key in Redis](../howto/redis-lock.md), which needs ~WIREFENCE_REDIS_LISTEN~ and ~WIREFENCE_REDIS_URL~; ~kubernetes:NAMESPACE/NAME=RESOURCE~ for [the Lease of a leader election](../howto/leader-election.md). Needs ~WIREFENCE_DATABASE_URL~"`
	LeaseScope  string `env:"WIREFENCE_LEASE_SCOPE" group:"Leases" oneof:"guards|all" envDefault:"guards" help:"what the leases of ~WIREFENCE_LEASE_FROM~ count for: ~guards~: tables that are protected with their resources, and nothing else; ~all~: all that the application does, as with ~WIREFENCE_LEASE~"`
	LeaseOwner  string `env:"WIREFENCE_LEASE_OWNER" group:"Leases" type:"name" help:"what the holder of a Lease of Kubernetes must begin with to be this sidecar's application: its identity is ~OWNER_UUID~; by default the host's name, which is the pod's"`
	Kubernetes  string `env:"WIREFENCE_KUBERNETES_URL" group:"Leases" type:"url" help:"the API server of the Leases in ~WIREFENCE_LEASE_FROM~: ~https://host:6443?ca=FILE&token=FILE~; by default that of the pod's cluster, with the pod's service account, which needs the verbs ~list~ and ~watch~ for them"`
	RedisListen string `env:"WIREFENCE_REDIS_LISTEN" group:"Connections" type:"address" help:"address at which the application reaches the Redis of ~WIREFENCE_REDIS_URL~ through this proxy, which follows its locks there: ~host:port~ or the path of a Unix socket. With ~WIREFENCE_TLS_CERT_FILE~ it takes TLS (~rediss://~) on the same port"`
}

// adopted is the leases that follow the application's own locks. A nil one is that of a proxy without
// WIREFENCE_LEASE_FROM.
type adopted struct {
	book     adopt.Book
	first    fence.Resource
	locks    adopt.From
	relay    *relay.Relay             // nil without locks in Redis
	advisory *advisory.Follower       // nil without advisory locks
	rows     *rows.Follower           // nil without locks in rows
	kube     *leaderelection.Follower // nil without Leases of Kubernetes
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
	case cfg.DatabaseURL == "":
		return nil, errors.New("WIREFENCE_LEASE_FROM needs WIREFENCE_DATABASE_URL, where the application's locks are sealed")
	case len(locks.Of(adopt.Redis)) > 0 && (cfg.RedisListen == "" || cfg.RedisURL == ""):
		return nil, errors.New("WIREFENCE_LEASE_FROM needs WIREFENCE_REDIS_LISTEN, where the application reaches Redis, and WIREFENCE_REDIS_URL, where Redis is")
	case len(locks.Of(adopt.Redis)) == 0 && cfg.RedisListen != "":
		return nil, errors.New("WIREFENCE_REDIS_LISTEN needs a lock in Redis in WIREFENCE_LEASE_FROM, as in redis:KEY=RESOURCE")
	case cfg.LeaseOf != "" && cfg.LeaseScope == "all":
		return nil, errors.New("WIREFENCE_LEASE and WIREFENCE_LEASE_SCOPE=all exclude each other: a statement runs under one of the leases")
	case len(locks.Of(adopt.Row)) > 0 && cfg.LeaseScope == "all":
		return nil, errors.New("WIREFENCE_LEASE_SCOPE=all is not for a lock in a row: to take it is a write, which would need the lease")
	case cfg.Mode == proxy.Off:
		return nil, errors.New("WIREFENCE_LEASE_FROM has no effect with WIREFENCE_MODE=off")
	}
	if leases == nil {
		return nil, nil // they couldn't be opened, which is reported
	}
	a := &adopted{first: locks[0].Resource, locks: locks, log: log}
	id := rand.Text()
	holder := cfg.processName() + "/" + id
	following := adoptseal.Options{Pool: leases.databases[0].Pool, Book: &a.book, Holder: holder, Logger: log}
	for _, d := range leases.databases[1:] {
		following.Sealers = append(following.Sealers, d.sealer(fence.SourcePostgres))
	}
	if following.Locks = locks.Of(adopt.Advisory); len(following.Locks) > 0 {
		a.advisory = advisory.New(following)
	}
	if following.Locks = locks.Of(adopt.Row); len(following.Locks) > 0 {
		a.rows = rows.New(following)
	}
	if some := locks.Of(adopt.Redis); len(some) > 0 {
		upstream, origin := connstring.Cut(string(cfg.RedisURL))
		o := relay.Options{
			Listen: cfg.RedisListen, Upstream: upstream, Reload: origin.Reload(), Locks: map[string]fence.Resource{}, Book: &a.book, Sealers: leases.adopting(relay.Source),
			ID: id, Holder: holder, Logger: log, Registerer: registry,
		}
		var invalid error // which the proxy reports
		if o.TLS, o.RequireTLS, invalid = proxy.TLS(cfg.TLS).Config(func(err error) {
			log.Error("cannot use a file that has changed; the last good one stays in use", "error", err)
		}); invalid != nil {
			return nil, nil
		}
		for _, lock := range some {
			o.Locks[lock.Name] = lock.Resource
		}
		if a.relay, err = relay.New(o); err != nil {
			return nil, fmt.Errorf("WIREFENCE_REDIS_LISTEN: %w", err)
		}
	}
	return a, a.followElections(cfg, leases, registry)
}

// followElections makes what follows Leases of Kubernetes.
func (a *adopted) followElections(cfg proxySettings, leases *leases, registry prometheus.Registerer) error {
	locks := a.locks.Of(adopt.Kubernetes)
	if len(locks) == 0 {
		return nil
	}
	o := leaderelection.Options{Locks: locks, Owner: cfg.LeaseOwner, Book: &a.book, Sealers: leases.adopting(leaderelection.Source), Logger: a.log, Registerer: registry}
	host, err := os.Hostname()
	if o.Owner = cmp.Or(o.Owner, host); o.Owner == "" {
		return fmt.Errorf("the host's name, give WIREFENCE_LEASE_OWNER: %w", err)
	}
	if o.Client, err = openAPIServer(cfg.Kubernetes); err != nil {
		return err
	}
	a.kube, err = leaderelection.New(o)
	return err
}

// openAPIServer makes a client of the API server of Kubernetes. It doesn't connect yet.
func openAPIServer(url string) (*apiserver.Client, error) {
	o, err := apiserver.ParseOptions(url)
	if err != nil {
		return nil, fmt.Errorf("WIREFENCE_KUBERNETES_URL: %w", err)
	}
	client, err := apiserver.New(o)
	if err != nil {
		return nil, fmt.Errorf("WIREFENCE_KUBERNETES_URL: %w", err)
	}
	return client, nil
}

// adopting are the sealers of grants that another service than the lease store counts.
func (l *leases) adopting(source fence.Source) (all []lockclient.Sealer) {
	for _, d := range l.databases {
		all = append(all, d.sealer(source))
	}
	return all
}

// works are what follows locks outside of the application's own connections.
func (a *adopted) works() (all []func(context.Context)) {
	if a == nil {
		return nil
	}
	if a.rows != nil {
		all = append(all, a.rows.Run)
	}
	if a.kube != nil {
		all = append(all, a.kube.Run)
	}
	return all
}

// ready returns why a lock that the application takes now wouldn't be followed.
func (a *adopted) ready() error {
	if a == nil || a.kube == nil {
		return nil
	}
	return a.kube.Ready()
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
	if a.rows != nil {
		o.Rows = a.rows
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

// adoptedJSON is a lock of the application's own, with the last lease that followed it.
type adoptedJSON struct {
	From      string         `json:"from" says:"the lock, as in redis:locks:orders"`
	Resource  fence.Resource `json:"resource" says:"the resource whose lease follows it"`
	Held      bool           `json:"held" says:"whether the lease is held now"`
	Token     fence.Token    `json:"token,omitempty" says:"the lease's token"`
	TokenText string         `json:"token_text,omitempty" says:"the token's digits"`
	Holder    string         `json:"holder,omitempty" says:"the holder of the lease, or of the lock if no lease has begun"`
	Since     time.Time      `json:"since,omitzero" says:"when the lease began"`
	Until     time.Time      `json:"until,omitzero" says:"when its time passes unless the holder renews; absent without such a time"`
	Ended     string         `json:"ended,omitempty" says:"why the lease is over, or why none has begun"`
}

// leases are the locks, in the order of the setting.
func (a *adopted) leases() (all []adoptedJSON) {
	if a == nil {
		return nil
	}
	last := map[fence.Resource]adopt.Lease{}
	for _, l := range a.book.Leases() {
		last[l.Resource] = l
	}
	for _, lock := range a.locks {
		l, begun := last[lock.Resource]
		one := adoptedJSON{
			From: lock.String(), Resource: lock.Resource, Held: begun && l.Ended == "", Token: l.Token, Holder: l.Holder,
			Since: l.Since.UTC().Truncate(time.Millisecond), Until: l.Until.UTC().Truncate(time.Millisecond), Ended: l.Ended,
		}
		if l.Token != 0 {
			one.TokenText = l.Token.String()
		}
		all = append(all, one)
	}
	return all
}

// awaits are the classes of rows, and the Redis behind the relay, which opens its listener once that can be
// used.
func (a *adopted) awaits() (all []*awaited) {
	if a == nil {
		return nil
	}
	if a.rows != nil {
		all = append(all, &awaited{
			look:       a.rows.Check,
			mayComeYet: func(error) bool { return true },
			lacks:      "a class of rows in WIREFENCE_LEASE_FROM isn't declared yet, or can't be looked up",
			has:        "the classes of rows in WIREFENCE_LEASE_FROM are declared",
			log:        a.log,
		})
	}
	if a.relay != nil {
		all = append(all, &awaited{
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
		})
	}
	return all
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
