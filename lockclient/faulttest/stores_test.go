//go:build linux

package faulttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/etcd"
	"github.com/wirefence/wirefence/lockclient/postgres"
	"github.com/wirefence/wirefence/lockclient/redis"
	"github.com/wirefence/wirefence/lockclient/zookeeper"
)

// kind is a lease store in one arrangement of its servers.
type kind struct {
	name   string // for people
	store  string // for openStore
	ttl    time.Duration
	judges bool // the store seals by itself
	start  func(t *testing.T, w *world) store
	faults []fault
}

// store is the servers that keep the leases in a run.
type store interface {
	// addr returns the address at which a seat's clients reach the store, or "" if they must
	// find the servers themselves, so that no link can be put between.
	addr(seat int) string
	// url returns the URL of the store at an address.
	url(addr string) string
}

// kinds are all stores.
var kinds = []kind{
	{name: "Redis", store: "redis", ttl: ttl, start: startRedis(1), faults: redisFaults},
	{name: "two Redis", store: "redis", ttl: ttl, start: startRedis(2), faults: []fault{splitBrain}},
	{name: "Redis Sentinel", store: "redis", ttl: ttl, start: startSentinel, faults: []fault{laggingReplica(false)}},
	{name: "Redis Sentinel, grants waiting for the replica", store: "replicated redis", ttl: ttl, start: startSentinel, faults: []fault{laggingReplica(true)}},
	{name: "Redis Cluster", store: "redis", ttl: ttl, start: startCluster, faults: []fault{masterKilled}},
	{name: "etcd", store: "etcd", ttl: time.Second, start: startEtcd(1), faults: durableFaults},
	{name: "three etcd", store: "etcd", ttl: time.Second, start: startEtcd(3), faults: []fault{memberKilled}},
	{name: "ZooKeeper", store: "zookeeper", ttl: time.Second, start: startZooKeeper(1), faults: durableFaults},
	{name: "three ZooKeepers", store: "zookeeper", ttl: time.Second, start: startZooKeeper(3), faults: []fault{memberKilled}},
	{name: "PostgreSQL", store: "postgres", ttl: ttl, judges: true, start: startLeases, faults: postgresFaults},
}

// ttl is the TTL of leases in stores that support such short ones.
const ttl = 500 * time.Millisecond

// openStore opens the store of a client.
func openStore(ctx context.Context, s settings) (lockclient.Store, func(), error) {
	switch s.Store {
	case "redis":
		return opened(redis.Open(s.URL))
	case "replicated redis":
		return opened(redis.OpenWith(s.URL, redis.Options{Replicas: 1}))
	case "zookeeper":
		return opened(zookeeper.Open(s.URL))
	case "etcd":
		return opened(etcd.Open(s.URL))
	case "postgres":
		pool, err := pgxpool.New(ctx, s.URL)
		if err != nil {
			return nil, nil, err
		}
		store := postgres.New(pool)
		return store, func() { _ = store.Close(); pool.Close() }, nil
	}
	return nil, nil, fmt.Errorf("%w: %q", errNoStore, s.Store)
}

func opened[S lockclient.StoreCloser](store S, err error) (lockclient.Store, func(), error) {
	if err != nil {
		return nil, nil, err
	}
	return store, func() { _ = store.Close() }, nil
}

type redisServers []*servers.Redis

// startRedis starts this many independent servers. The seats take turns between them.
func startRedis(n int) func(*testing.T, *world) store {
	return func(t *testing.T, _ *world) store {
		t.Helper()
		var all redisServers
		for range n {
			server := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
			all = append(all, server)
		}
		return all
	}
}

func (s redisServers) addr(seat int) string   { return s[seat%len(s)].Addr() }
func (s redisServers) url(addr string) string { return "redis://" + addr + "/0" }

var redisFaults = []fault{
	nothing,
	{name: "killed, comes back empty", strike: on(func(s redisServers, _ *world, _ *rand.Rand) (func() error, error) {
		s[0].Kill()
		return func() error { return s[0].Start(context.Background()) }, nil
	})},
	{name: "flushed", strike: on(func(s redisServers, _ *world, _ *rand.Rand) (func() error, error) {
		_, err := s[0].Do(context.Background(), "FLUSHALL")
		return nothingToMend, err
	})},
	{name: "restored from an old snapshot", strike: on(func(s redisServers, _ *world, _ *rand.Rand) (func() error, error) {
		_, err := s[0].Do(context.Background(), "SAVE")
		return func() error {
			s[0].Kill()
			return s[0].Start(context.Background()) // with what was saved
		}, err
	})},
	{name: "stopped, goes on", keepsMemory: true, strike: on(func(s redisServers, _ *world, _ *rand.Rand) (func() error, error) {
		return s[0].Resume, s[0].Pause()
	})},
	cutOff,
	judgeKilled,
	judgeCutOff,
	revoked,
}

// leases are kept in the judge's own database.
type leases struct{ *world }

func startLeases(_ *testing.T, w *world) store { return leases{w} }

func (l leases) addr(int) string { return l.pg.Addr() }
func (l leases) url(addr string) string {
	return l.issuerURL(addr) + "&pool_max_conns=6&connect_timeout=2"
}

var postgresFaults = []fault{
	nothing,
	{name: "killed, comes back without leases", hitsJudge: true, strike: judgeKilled.strike},
	{name: "leases wiped", strike: func(w *world, _ *rand.Rand) (func() error, error) {
		return nothingToMend, w.pg.Exec(context.Background(), w.database, "TRUNCATE wirefence.leases")
	}},
	cutOff,
	{name: revoked.name, strike: revoked.strike}, // which frees the lease, too
}
