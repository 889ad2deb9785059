package redis_test

import (
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// Replicated leases survive their master, and waiters get notices of releases at the new
// one.
func TestAStoreGoesOnAfterAFailover(t *testing.T) {
	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		s := ownSentinel(t)
		goesOn(t, s, func() {
			s.Master.Kill()
			if err := s.AwaitFailover(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		ctx := t.Context()
		c := stack.Started(servers.StartRedisCluster(ctx)).EndWith(t)
		goesOn(t, c, func() {
			for _, node := range c.Nodes() {
				if _, err := node.Do(ctx, "config", "set", "cluster-node-timeout", 2000, "cluster-require-full-coverage", "no"); err != nil {
					t.Fatal(err)
				}
			}
			at, err := c.MasterOf(ctx, redis.LeaseKey("r"))
			if err != nil {
				t.Fatal(err)
			}
			c.Masters[at].Kill()
		})
	})
}

func goesOn(t *testing.T, server interface{ URL() string }, failOver func()) {
	ctx, store := t.Context(), open(t, server)
	first, err := openReplicated(t, server.URL(), ample).Acquire(ctx, "r", "me", time.Hour)
	if err != nil || !first.Won() {
		t.Fatal(first, err)
	}
	released := make(chan struct{}, 1)
	stop, err := store.Notify(ctx, "r", released)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	<-released // it listens

	failOver()
	stack.Eventually(t, "answer of a new master", func() bool {
		attempt, err := store.Acquire(ctx, "r", "another", time.Hour)
		if err == nil && attempt.Holder != lockclient.HolderOf("me") {
			t.Fatalf("the new master doesn't know the holder: %+v", attempt)
		}
		return err == nil
	})
	last := first.Token
	for holder, next := "me", "a"; next != "aaa"; holder, next = next, next+"a" {
		if held, err := store.Release(ctx, "r", holder); err != nil || !held {
			t.Fatal(held, err)
		}
		<-released // the first may be for a connection to the new master
		attempt, err := store.Acquire(ctx, "r", next, time.Hour)
		if err != nil || attempt.Token <= last {
			t.Fatal(attempt, err)
		}
		last = attempt.Token
	}
}
