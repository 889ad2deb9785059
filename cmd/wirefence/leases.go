package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/api"
	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/manual"
	"github.com/wirefence/wirefence/internal/metrics"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/etcd"
	pgleases "github.com/wirefence/wirefence/lockclient/postgres"
	"github.com/wirefence/wirefence/lockclient/redis"
	"github.com/wirefence/wirefence/lockclient/zookeeper"
)

// StoreSettings name the lease store. The database that keeps leases where no other does is
// each command's own.
//
// A field whose type is a storeURL registers a lease store, which openStore opens.
type StoreSettings struct {
	RedisURL         redis.URL     `env:"WIREFENCE_REDIS_URL" group:"Leases" file:"reread" help:"the [lease store](stores.md): ~redis://user:password@host:6379/0~, or ~redis-sentinel://~, ~redis-cluster://~. Without a store, leases are [in PostgreSQL](leases.md), in the database of ~WIREFENCE_DATABASE_URL~. All who compete for a resource must use the same store"`
	RedisReplicas    int           `env:"WIREFENCE_REDIS_WAIT_REPLICAS" group:"Leases" envDefault:"0" range:"0.." help:"number of Redis replicas that must have a grant or a renewal before it is valid ([more](stores.md#waiting-for-replicas))"`
	RedisWaitTimeout time.Duration `env:"WIREFENCE_REDIS_WAIT_TIMEOUT" group:"Leases" envDefault:"1s" range:"1ms.." help:"time that a grant or a renewal waits for them before it fails; less than ~5s~"`
	EtcdURL          etcd.URL      `env:"WIREFENCE_ETCD_URL" group:"Leases" file:"reread" help:"etcd as the lease store: ~etcd://user:password@host1,host2/prefix?tls=true~"`
	ZooKeeperURL     zookeeper.URL `env:"WIREFENCE_ZOOKEEPER_URL" group:"Leases" file:"reread" help:"ZooKeeper as the lease store: ~zookeeper://user:password@host1,host2/root~"`
}

// storeURL is a connection string of a lease store.
type storeURL interface {
	// Source is what the tokens of the store come from.
	Source() fence.Source
}

// LeaseSettings are those of every command that takes leases. The database that
// seals is each command's own, too.
type LeaseSettings struct {
	StoreSettings
	SealSettings
	TTL     time.Duration `env:"WIREFENCE_TTL" group:"Leases" envDefault:"15s" range:"20ms..8784h" help:"time that the store keeps a lease without a renewal"`
	MaxHold time.Duration `env:"WIREFENCE_MAX_HOLD" group:"Leases" envDefault:"24h" range:"1ms.." help:"longest time that a lease is kept, renewals included"`
	KeepFor time.Duration `env:"WIREFENCE_KEEP_FOR" group:"Leases" envDefault:"0s" range:"0..8784h" help:"time from its grant for which a lease [stays taken](holding.md#keeping-a-lease-beyond-its-work) at least if its work has succeeded: the command of ~wirefence lock~ with status 0, or a sidecar until ~SIGTERM~. ~0s~: it is free at once. Not with ZooKeeper"`
	Holder  string        `env:"WIREFENCE_HOLDER" group:"Leases" type:"name" help:"readable name of the holder; by default host and process id"`
	// Unsealed permits what the first promise of the README excludes.
	Unsealed bool `env:"WIREFENCE_UNSEALED" group:"Leases" envDefault:"false" help:"permit leases in another store than PostgreSQL without ~WIREFENCE_DATABASE_URL~. Their grants aren't sealed, so a former holder [can commit](stores.md#without-a-seal) until the new token's first write"`
}

// leases are a lease store and the database that seals its grants.
type leases struct {
	store     lockclient.Store
	source    fence.Source     // named in fences, where no seal records the source of tokens
	counts    fence.Source     // the source of the store's tokens
	database  *pgxpool.Pool    // that of WIREFENCE_DATABASE_URL; nil if none is set
	databases []sealedDatabase // all in which grants are recorded, that one first
	measured  *metrics.Stores  // nil where nothing measures the store
	closers   []func()         // the last one first
}

// leaseStore is a lease store besides PostgreSQL.
type leaseStore struct {
	storeURL
	setting string // that names it
}

// stores are all lease stores besides PostgreSQL, whether the settings name them or not.
func (cfg StoreSettings) stores() (all []leaseStore) {
	for _, f := range fields[StoreSettings]() {
		if url, ok := reflect.ValueOf(cfg).FieldByIndex(f.Index).Interface().(storeURL); ok {
			all = append(all, leaseStore{url, variable(f)})
		}
	}
	return all
}

// namedStores are the lease stores that the settings name.
func (cfg StoreSettings) namedStores() []leaseStore {
	return slices.DeleteFunc(cfg.stores(), func(store leaseStore) bool { return reflect.ValueOf(store.storeURL).IsZero() })
}

// storeSources are what the tokens of all lease stores come from.
func storeSources() []fence.Source {
	all := []fence.Source{fence.SourcePostgres}
	for _, store := range (StoreSettings{}).stores() {
		all = append(all, store.Source())
	}
	return all
}

// openStore opens a lease store, with the options that Redis has. It doesn't connect yet.
func (cfg StoreSettings) openStore(named leaseStore) (lockclient.StoreCloser, error) {
	text, origin := connstring.Cut(reflect.ValueOf(named.storeURL).String())
	switch named.storeURL.(type) {
	case etcd.URL:
		return etcd.OpenWith(text, etcd.Options{Reload: origin.Reload()})
	case zookeeper.URL:
		return zookeeper.OpenReloading(text, origin.Reload())
	}
	store, err := redis.OpenWith(text, redis.Options{Replicas: cfg.RedisReplicas, ReplicaTimeout: cfg.RedisWaitTimeout, Reload: origin.Reload()})
	if errors.Is(err, redis.ErrOptions) {
		err = fmt.Errorf("WIREFENCE_REDIS_WAIT_REPLICAS, WIREFENCE_REDIS_WAIT_TIMEOUT: %w", err)
	}
	return store, err
}

// storeSettings names the settings of the lease stores, as in "A, B or C".
func storeSettings() string {
	var names []string
	for _, store := range (StoreSettings{}).stores() {
		names = append(names, store.setting)
	}
	return manual.Alternatives(strings.Join(names, "|"))
}

// storeNamed reports whether openLeases would find a lease store named.
func (cfg StoreSettings) storeNamed(databaseURL string) bool {
	return databaseURL != "" || len(cfg.namedStores()) > 0
}

// sealers are those of the lock client: the PostgreSQL store seals by itself in its database.
func (l *leases) sealers() (all []lockclient.Sealer) {
	for _, d := range l.databases {
		if l.counts != fence.SourcePostgres || d.Pool != l.database {
			all = append(all, d.sealer(l.counts))
		}
	}
	return all
}

// recorded are all databases in which grants are recorded.
func (l *leases) recorded() (all []lockclient.PostgresSealer) {
	for _, d := range l.databases {
		all = append(all, d.sealer(l.counts))
	}
	return all
}

// mostConnections is the size of the pool for leases. A grant holds a connection while it
// waits for older transactions, and renewals must not wait for grants.
const mostConnections = 32

// sealing refuses settings under which nothing would seal the leases, unless they are
// permitted.
func (cfg LeaseSettings) sealing(databaseURL string, log *slog.Logger) error {
	named := cfg.namedStores()
	if databaseURL != "" || len(cfg.SealURLs) > 0 || len(named) == 0 {
		return nil
	}
	if !cfg.Unsealed {
		return usageError{fmt.Errorf("%s is set without WIREFENCE_DATABASE_URL, so nothing would seal the leases: a former holder could commit until the new token's first write. "+
			"Set WIREFENCE_DATABASE_URL to the issuer's connection string, or WIREFENCE_UNSEALED=true to do without", named[0].setting)}
	}
	log.Warn("leases are not sealed: a former holder can commit until the new token's first write; set WIREFENCE_DATABASE_URL to seal them", "store", named[0].setting)
	return nil
}

// keepIdle is how long a connection is kept that nothing uses: there may be many proxies, so an
// idle one keeps one or two. A pool hands out the connection that came back last, but behind each
// look for idle ones begins with the others. So the time between looks is longer.
const keepIdle = 4 * time.Second

// openPool makes a pool with room for at least most connections. It doesn't connect yet.
func openPool(ctx context.Context, url string, most int32) (*pgxpool.Pool, error) {
	cfg, err := connstring.Pool(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = max(cfg.MaxConns, most)
	cfg.MaxConnIdleTime, cfg.HealthCheckPeriod = min(cfg.MaxConnIdleTime, keepIdle), keepIdle+time.Second
	nameSession(cfg.ConnConfig)
	refuseFormerPrimary(cfg)
	api.NameCallers(cfg)
	return pgxpool.NewWithConfig(ctx, cfg)
}

// openLeases opens the lease store and the database that the settings name. It does not
// connect yet.
func openLeases(ctx context.Context, cfg StoreSettings, databaseURL string, further connectionStrings) (*leases, error) {
	named := cfg.namedStores()
	switch {
	case len(named) > 1:
		return nil, fmt.Errorf("both %s and %s are set: leases are in one store", named[0].setting, named[1].setting)
	case len(named) == 0 && databaseURL == "":
		return nil, fmt.Errorf("no lease store: set WIREFENCE_DATABASE_URL for leases in PostgreSQL, or %s", storeSettings())
	}
	if cfg.RedisReplicas != 0 && cfg.RedisURL == "" {
		return nil, errors.New("WIREFENCE_REDIS_WAIT_REPLICAS is set, but not WIREFENCE_REDIS_URL")
	}
	l := &leases{counts: fence.SourcePostgres}
	if databaseURL != "" {
		d, err := openDatabase(ctx, "WIREFENCE_DATABASE_URL", databaseURL)
		if err != nil {
			return nil, err
		}
		l.closers = append(l.closers, d.Close)
		l.database, l.databases = d.Pool, []sealedDatabase{d}
	}
	if err := l.openSealed(ctx, further); err != nil {
		l.close()
		return nil, err
	}
	if len(named) == 0 {
		store := pgleases.New(l.database)
		l.store = store
		l.closers = append(l.closers, func() { _ = store.Close() })
		return l, nil
	}
	store, err := cfg.openStore(named[0])
	if err != nil {
		l.close()
		return nil, fmt.Errorf("%s: %w", named[0].setting, err)
	}
	l.store, l.counts = store, named[0].Source()
	l.closers = append(l.closers, func() { _ = store.Close() })
	if len(l.databases) == 0 {
		l.source = l.counts
	}
	return l, nil
}

// openMeasuredLeases is openLeases for a proxy, with metrics.
func openMeasuredLeases(ctx context.Context, cfg LeaseSettings, databaseURL string, registry prometheus.Registerer) (*leases, error) {
	stores, err := metrics.NewStores(registry)
	if err != nil {
		return nil, err
	}
	l, err := openLeases(ctx, cfg.StoreSettings, databaseURL, cfg.SealURLs)
	if err != nil {
		return nil, err
	}
	if store, ok := l.store.(metrics.Whole); ok {
		l.store, l.measured = stores.Store(store), stores
	}
	return l, nil
}

// watch returns the work that watches whether the store answers, nil where none can be asked.
func (l *leases) watch(log *slog.Logger) func(context.Context) {
	if l == nil {
		return nil
	}
	looker, ok := l.store.(lockclient.Looker)
	if !ok {
		return nil
	}
	return func(ctx context.Context) { l.measured.Watch(ctx, looker, log) }
}

func (l *leases) close() {
	for i := len(l.closers) - 1; i >= 0; i-- {
		l.closers[i]()
	}
}

// client makes a client that takes leases in the store.
func (l *leases) client(cfg LeaseSettings, log *slog.Logger) (*lockclient.Client, error) {
	logRedisTo(log)
	client, err := lockclient.New(l.store, lockclient.Options{
		Sealers: l.sealers(), Unsealed: cfg.Unsealed, Source: l.source, TTL: cfg.TTL, MaxHold: cfg.MaxHold, KeepFor: cfg.KeepFor, Holder: cfg.Holder, Logger: log,
	})
	if errors.Is(err, lockclient.ErrTransient) {
		err = fmt.Errorf("WIREFENCE_KEEP_FOR: %w", err)
	}
	return client, err
}

// SealSettings name the databases in which grants are sealed besides the one of
// WIREFENCE_DATABASE_URL, which is each command's own.
type SealSettings struct {
	SealURLs connectionStrings `env:"WIREFENCE_SEAL_URLS" flag:"seal" group:"Leases" type:"url..." file:"anew" help:"connection strings of the issuer's roles in [further databases](stores.md#several-databases) that the holder writes to, separated by spaces: a grant counts only if it is sealed in all of them, and in the database of ~WIREFENCE_DATABASE_URL~. The flag may be given several times"`
}

// connectionStrings are several connection strings.
type connectionStrings []string

// UnmarshalText splits a text.
func (all *connectionStrings) UnmarshalText(text []byte) error {
	*all = connstring.Split(string(text))
	return nil
}

// sealedDatabase is one in which grants are sealed.
type sealedDatabase struct {
	*pgxpool.Pool
	name string // for messages: its hosts and the database
}

// openDatabase makes the pool of a database that a setting names. It doesn't connect yet.
func openDatabase(ctx context.Context, setting, url string) (sealedDatabase, error) {
	pool, err := openPool(ctx, url, mostConnections)
	if err != nil {
		return sealedDatabase{}, fmt.Errorf("%s: %w", setting, err)
	}
	return sealedDatabase{pool, serverName(pool.Config().ConnConfig)}, nil
}

// sealer seals tokens of a source in the database.
func (d sealedDatabase) sealer(source fence.Source) lockclient.PostgresSealer {
	return lockclient.PostgresSealer{Querier: d.Pool, Source: source, Server: d.name}
}

// serverName names all hosts that a connection string names, and the database.
func serverName(cfg *pgx.ConnConfig) string {
	hosts := []string{net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))}
	for _, f := range cfg.Fallbacks {
		if host := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return strings.Join(hosts, ",") + "/" + cfg.Database
}

// openSealed adds the databases that the settings name to those in which grants are sealed.
// Two names of one database that can't be told apart here do no harm: a grant that it has
// recorded already counts as sealed.
func (l *leases) openSealed(ctx context.Context, urls connectionStrings) error {
	for _, url := range urls {
		d, err := openDatabase(ctx, "WIREFENCE_SEAL_URLS", url)
		if err != nil {
			return err
		}
		l.closers = append(l.closers, d.Close)
		if slices.ContainsFunc(l.databases, func(other sealedDatabase) bool { return other.name == d.name }) {
			return fmt.Errorf("WIREFENCE_SEAL_URLS names %s, which is named before: name each database once, and that of WIREFENCE_DATABASE_URL only there", d.name)
		}
		l.databases = append(l.databases, d)
	}
	return nil
}
