//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// sentinel is a master and a replica with asynchronous replication.
type sentinel struct{ *servers.RedisSentinel }

func startSentinel(t *testing.T, _ *world) store {
	t.Helper()
	s := stack.Started(servers.StartRedisSentinel(t.Context())).EndWith(t)
	return sentinel{s}
}

func (sentinel) addr(int) string     { return "" }
func (s sentinel) url(string) string { return s.URL() }

// laggingReplica replaces a master that was killed, or was stopped and returns as a
// second master. If grants wait for the replica, it has all valid ones, however much it
// lags.
func laggingReplica(waitedFor bool) fault {
	return fault{name: "fails over to a lagging replica", keepsMemory: waitedFor, strike: on(failOver)}
}

func failOver(s sentinel, w *world, r *rand.Rand) (func() error, error) {
	ctx := context.Background()
	if err := s.CutReplication(ctx); err != nil {
		return nil, err
	}
	wait(ctx, between(r, w.kind.ttl/2, 2*w.kind.ttl)) // so much is lost
	comeBack := s.Master.Resume
	if r.IntN(2) == 0 {
		s.Master.Kill()
		comeBack = func() error { return s.Master.Start(ctx) }
	} else if err := s.Master.Pause(); err != nil {
		return nil, err
	}
	return func() error {
		if err := errors.Join(s.AwaitFailover(ctx), comeBack()); err != nil {
			return err
		}
		s.Master, s.Replica = s.Replica, s.Master
		return s.RestoreReplication(ctx)
	}, nil
}

// cluster is three masters with a replica each, of which one pair has the
// resource's keys.
type cluster struct {
	*servers.RedisCluster
	pair    int
	members string // connection string with those that were masters at first
}

func startCluster(t *testing.T, _ *world) store {
	t.Helper()
	c := stack.Started(servers.StartRedisCluster(t.Context(), "--cluster-node-timeout", "2000")).EndWith(t)
	pair, err := c.MasterOf(t.Context(), redis.LeaseKey(resource))
	if err != nil {
		t.Fatal(err)
	}
	return cluster{c, pair, c.URL()}
}

func (cluster) addr(int) string     { return "" }
func (c cluster) url(string) string { return c.members }

var masterKilled = fault{name: "a master killed, its replica takes over", strike: on(func(c cluster, _ *world, _ *rand.Rand) (func() error, error) {
	ctx := context.Background()
	master, replica := c.Masters[c.pair], c.Replicas[c.pair]
	master.Kill()
	return func() error {
		if err := becomes(ctx, replica, "role:master"); err != nil {
			return err
		}
		if err := master.Start(ctx); err != nil {
			return err
		}
		c.Masters[c.pair], c.Replicas[c.pair] = replica, master
		return becomes(ctx, replica, "state=online")
	}, nil
})}

// becomes waits until a server's replication state contains a text.
func becomes(ctx context.Context, server *servers.Redis, text string) error {
	ctx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	for {
		info, err := server.Do(ctx, "INFO", "replication")
		if strings.Contains(fmt.Sprint(info), text) {
			return nil
		}
		if !wait(ctx, 20*time.Millisecond) {
			return fmt.Errorf("waiting for %s at %s: %w", text, server.Addr(), errors.Join(err, ctx.Err()))
		}
	}
}
