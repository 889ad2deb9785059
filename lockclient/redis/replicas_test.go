package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
	"github.com/wirefence/wirefence/lockclient/storetest"
)

// ample is a ReplicaTimeout that is enough on a loaded machine, brief is one whose end
// tests await.
const (
	ample = 4 * time.Second
	brief = 200 * time.Millisecond
)

func openReplicated(t testing.TB, url string, timeout time.Duration) *redis.Store {
	t.Helper()
	store, err := redis.OpenWith(url, redis.Options{Replicas: 1, ReplicaTimeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func ownSentinel(t testing.TB) *servers.RedisSentinel {
	return stack.Started(servers.StartRedisSentinel(t.Context())).EndWith(t)
}

func TestConformanceWithReplicas(t *testing.T) {
	for _, name := range []string{"Sentinel", "Cluster"} {
		t.Run(name, func(t *testing.T) {
			url := everyKind[name](t).URL()
			storetest.Run(t, func(t testing.TB) lockclient.Store { return openReplicated(t, url, ample) })
		})
	}
}

func TestAGrantIsOnItsReplicaBeforeItIsHandedOut(t *testing.T) {
	ctx, c := t.Context(), theCluster(t)
	store := openReplicated(t, c.URL(), ample)
	for i := range 50 {
		resource, holder := fence.Resource(fmt.Sprint("replicated ", i)), fmt.Sprint("holder ", i)
		attempt, err := store.Acquire(ctx, resource, holder, time.Minute)
		if err != nil || !attempt.Won() {
			t.Fatal(attempt, err)
		}
		at, err := c.MasterOf(ctx, redis.LeaseKey(resource))
		if err != nil {
			t.Fatal(err)
		}
		replica := goredis.NewClient(&goredis.Options{Addr: c.Replicas[at].Addr(), MaxRetries: -1, PoolSize: 1,
			OnConnect: func(ctx context.Context, conn *goredis.Conn) error { return conn.ReadOnly(ctx).Err() }})
		if got := replica.Get(ctx, redis.LeaseKey(resource)).Val(); got != lockclient.HolderOf(holder) {
			t.Errorf("the replica has %q", got)
		}
		if got := replica.Get(ctx, redis.TokenKey(resource)).Val(); got != attempt.Token.String() {
			t.Errorf("the replica has token %s, not %v", got, attempt.Token)
		}
		_ = replica.Close()
	}
}

// A stopped replica stays connected. A WAIT that was cut off is repeated, together with
// its renewal.
func TestAReplicaThatLagsGetsNoGrant(t *testing.T) {
	ctx, s := t.Context(), ownSentinel(t)
	link, err := servers.StartLink(s.Master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	store := openReplicated(t, "redis://"+link.Addr(), brief)
	patient := openReplicated(t, "redis://"+link.Addr(), ample)
	plain := open(t, s.Master)

	if _, err := patient.Acquire(ctx, "held", "me", time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := s.Replica.Pause(); err != nil {
		t.Fatal(err)
	}
	if attempt, err := plain.Acquire(ctx, "plain", "me", time.Minute); err != nil || !attempt.Won() {
		t.Fatalf("without Replicas: %+v, %v", attempt, err)
	}
	_, err = store.Acquire(ctx, "lagging", "me", time.Minute)
	if !errors.Is(err, redis.ErrNotReplicated) || !strings.Contains(err.Error(), "0 of 1") || !strings.Contains(err.Error(), link.Addr()) {
		t.Fatalf("acquire: %v", err)
	}
	if held, err := store.Renew(ctx, "held", "me", time.Minute); held || !errors.Is(err, redis.ErrNotReplicated) {
		t.Errorf("renew: %v, %v", held, err)
	}
	if held, err := store.Renew(ctx, "held", "another", time.Minute); held || err != nil {
		t.Errorf("renew by another: %v, %v", held, err)
	}

	failed := make(chan error, 1)
	go func() {
		_, err := patient.Acquire(ctx, "broken", "me", time.Minute)
		failed <- err
	}()
	master := direct(t, s.Master)
	stack.Eventually(t, "a WAIT under way", func() bool {
		return strings.Contains(master.Info(ctx, "clients").Val(), "blocked_clients:1")
	})
	link.Cut()
	link.Restore()
	if err := <-failed; !errors.Is(err, redis.ErrNotReplicated) {
		t.Errorf("with a connection that broke: %v", err)
	}

	if err := s.Replica.Resume(); err != nil {
		t.Fatal(err)
	}
	if attempt, err := patient.Acquire(ctx, "after", "me", time.Minute); err != nil || !attempt.Won() {
		t.Errorf("with the replica back: %+v, %v", attempt, err)
	}
}

// failover is a hook that does something after the first grant, before its
// replicas are waited for.
type failover struct {
	goredis.Hook
	once sync.Once
	do   func()
}

func (f *failover) DialHook(next goredis.DialHook) goredis.DialHook          { return next }
func (f *failover) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }
func (f *failover) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if slices.ContainsFunc(cmds, func(cmd goredis.Cmder) bool { return cmd.Name() == "wait" }) {
			f.once.Do(f.do)
		}
		return next(ctx, cmds)
	}
}

// The new master has enough replicas, none of which has the lease.
func TestAFailoverBetweenAGrantAndItsReplicas(t *testing.T) {
	ctx, s, former := t.Context(), ownSentinel(t), ownServer(t)
	var master atomic.Value
	master.Store(former.Addr())
	client := goredis.NewClient(&goredis.Options{
		ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, master.Load().(string))
		},
	})
	granted := false
	client.AddHook(&failover{do: func() {
		granted = direct(t, former).Exists(ctx, redis.LeaseKey("r")).Val() == 1
		master.Store(s.Master.Addr())
		former.Kill()
	}})
	store, err := redis.NewWith(client, redis.Options{Replicas: 1, ReplicaTimeout: ample})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	attempt, err := store.Acquire(ctx, "r", "me", time.Minute)
	if !errors.Is(err, redis.ErrNotReplicated) || !strings.Contains(err.Error(), "had ended before") || attempt.Won() {
		t.Errorf("%+v, %v", attempt, err)
	}
	if !granted {
		t.Error("the former master had not granted it")
	}
	if attempt, err := store.Acquire(ctx, "r", "me", time.Minute); err != nil || !attempt.Won() {
		t.Errorf("at the new master: %+v, %v", attempt, err)
	}
}

func TestAGrantThatIsNotReplicatedIsGivenBack(t *testing.T) {
	ctx, s := t.Context(), ownSentinel(t)
	client, err := lockclient.New(openReplicated(t, s.URL(), brief), lockclient.Options{Unsealed: true, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background())
	if err := s.CutReplication(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Acquire(ctx, "r"); !errors.Is(err, redis.ErrNotReplicated) {
		t.Fatal(err)
	}
	master := direct(t, s.Master)
	stack.Eventually(t, "release", func() bool { return master.Exists(ctx, redis.LeaseKey("r")).Val() == 0 })
	if err := s.RestoreReplication(ctx); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, "lease", func() bool {
		_, err := client.TryAcquire(ctx, "r")
		if err != nil && !errors.Is(err, redis.ErrNotReplicated) && !errors.Is(err, lockclient.ErrNotAcquired) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func TestOptionsOutOfRange(t *testing.T) {
	for want, opts := range map[string]redis.Options{
		"Replicas -1":              {Replicas: -1},
		"ReplicaTimeout 999":       {Replicas: 1, ReplicaTimeout: 999 * time.Microsecond},
		"less than the client's R": {Replicas: 1, ReplicaTimeout: 5 * time.Second},
	} {
		if _, err := redis.OpenWith(shared.URL(), opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	ring := goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": shared.Addr()}})
	defer ring.Close()
	if _, err := redis.NewWith(ring, redis.Options{Replicas: 1}); err == nil {
		t.Error("a ring can't wait for replicas")
	}
}

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

func TestAClusterTakenForOneServerSaysSo(t *testing.T) {
	c := theCluster(t)
	store := open(t, c.Masters[0])
	for i := range 100 {
		if _, err := store.Acquire(t.Context(), fence.Resource(fmt.Sprint(i)), "me", time.Minute); err != nil {
			if !strings.Contains(err.Error(), "redis-cluster://") {
				t.Error(err)
			}
			return
		}
	}
	t.Error("all slots at one of three masters")
}

// While a slot migrates, a renewal follows its key. A script with a key that does not
// exist yet runs at neither node, by the rules of Redis.
func TestASlotThatIsHandedOver(t *testing.T) {
	ctx, c := t.Context(), theCluster(t)
	store := openReplicated(t, c.URL(), ample)
	const resource = "migrating"
	key := redis.LeaseKey(resource)
	at, err := c.MasterOf(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	old, next := c.Masters[at], c.Masters[(at+1)%len(c.Masters)]
	do := func(node *servers.Redis, args ...any) any {
		t.Helper()
		answer, err := node.Do(ctx, args...)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	renew := func() {
		t.Helper()
		if held, err := store.Renew(ctx, resource, "me", time.Minute); err != nil || !held {
			t.Fatal(held, err)
		}
	}
	slot := do(old, "cluster", "keyslot", key)
	oldID, nextID := do(old, "cluster", "myid"), do(next, "cluster", "myid")
	if attempt, err := store.Acquire(ctx, resource, "me", time.Minute); err != nil || !attempt.Won() {
		t.Fatal(attempt, err)
	}
	do(next, "cluster", "setslot", slot, "importing", oldID)
	do(old, "cluster", "setslot", slot, "migrating", nextID)
	renew()
	do(old, "migrate", "127.0.0.1", next.Port, "", 0, 5000, "keys", key, redis.TokenKey(resource))
	renew()
	if held, err := store.Release(ctx, resource, "me"); err != nil || !held {
		t.Error(held, err)
	}
	if _, err := store.Acquire(ctx, resource, "me", time.Minute); !goredis.IsTryAgainError(err) {
		t.Error(err)
	}
	do(next, "cluster", "setslot", slot, "node", nextID)
	do(old, "cluster", "setslot", slot, "node", nextID)
	if attempt, err := store.Acquire(ctx, resource, "me", time.Minute); err != nil || attempt.Token != 2 {
		t.Error(attempt, err)
	}
	renew()
}
