package lockclient_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/etcd"
	"github.com/wirefence/wirefence/lockclient/postgres"
	"github.com/wirefence/wirefence/lockclient/redis"
	"github.com/wirefence/wirefence/lockclient/storetest"
	"github.com/wirefence/wirefence/lockclient/zookeeper"
)

func TestALeaseEndsWhereItsGrantIsLost(t *testing.T) {
	for name, lose := range map[string]func(*record){
		"the grant is gone":           func(r *record) { delete(r.last, "orders") },
		"an earlier one is the last":  func(r *record) { r.last["orders"]-- },
		"it was sealed before":        func(r *record) { r.former = true },
		"its token is a mere number":  func(r *record) { r.former, r.holder = true, "" },
		"the holder before has it on": func(r *record) { r.last["orders"], r.holder = 1, "before" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, sealer := newMemory(), &record{holder: "worker"}
				client := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{sealer}})
				release(t, acquire(t, client))
				lease := acquire(t, client)
				lose(sealer)
				if took := wantEnd(t, lease, lockclient.ErrFailover); took > noticedBy {
					t.Errorf("noticed after %v", took)
				}
				if store.holder("orders") != lease.Holder() || lease.Remaining() != margin {
					t.Errorf("held by %q, %v remain to stop in", store.holder("orders"), lease.Remaining())
				}
				<-time.After(margin + time.Nanosecond)
				synctest.Wait()
				if store.holder("orders") != "" {
					t.Errorf("held by %q", store.holder("orders"))
				}
			})
		})
	}
}

// promoted is a primary with the schema, whose standby is promoted without its last
// commits.
type promoted struct {
	primary, standby *servers.Postgres
	pool             *pgxpool.Pool // to the one that can be written to
}

func newPromoted(t *testing.T) *promoted {
	t.Helper()
	p := &promoted{primary: stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)}
	migrate(t, stack.Connect(t, p.primary.URL("postgres")))
	p.standby = stack.Started(p.primary.StartStandby(t.Context())).EndWith(t)
	p.pool = newPool(t, "postgres://postgres@"+p.primary.Addr()+","+p.standby.Addr()+"/postgres?sslmode=disable&target_session_attrs=read-write")
	return p
}

func (p *promoted) fallBehind(t *testing.T) {
	t.Helper()
	if err := p.standby.FallBehind(t.Context(), p.primary); err != nil {
		t.Fatal(err)
	}
}

func (p *promoted) failOver(t *testing.T) {
	t.Helper()
	p.primary.Kill()
	if err := p.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// check returns PostgreSQL's verdict on the fence of a lease.
func (p *promoted) check(t *testing.T, lease *lockclient.Lease) (err error) {
	t.Helper()
	stack.Eventually(t, "the pool has no connection any more to the server that is gone", func() bool {
		_, err = p.pool.Exec(t.Context(), "SELECT wirefence.check($1)", lease.Fence().String())
		return err == nil || fence.IsRefusal(err)
	})
	return err
}

// In every store the holder of a lease learns of the promotion, and the next grant is
// valid.
//
// Evidence: I9
func TestHoldersCarryOnBehindAPromotion(t *testing.T) {
	t.Parallel()
	p := newPromoted(t)
	seals := func(source fence.Source) []lockclient.Sealer {
		return []lockclient.Sealer{lockclient.PostgresSealer{Querier: p.pool, Source: source}}
	}
	stores := map[string]lockclient.Store{"postgres": postgres.New(p.pool), "redis": redisStore(t, startRedis(t))}
	sealers := map[string][]lockclient.Sealer{"redis": seals(redis.Source), "etcd": seals(etcd.Source), "zookeeper": seals(zookeeper.Source)}
	has := func(server string) (more bool) {
		t.Run(server, func(t *testing.T) { stack.NeedsMore(t, server); more = true })
		return more
	}
	if has("etcd") {
		stores["etcd"] = storetest.Open(t, etcd.Open, stack.Started(servers.StartEtcd(t.Context())).EndWith(t).URL())
	}
	if has("ZooKeeper") {
		stores["zookeeper"] = storetest.Open(t, zookeeper.Open, stack.Started(servers.StartZooKeeper(t.Context())).EndWith(t).URL())
	}
	clients, before, lost := map[string]*lockclient.Client{}, map[string]*lockclient.Lease{}, map[string]*lockclient.Lease{}
	acquire := func(name string) *lockclient.Lease {
		lease, err := clients[name].Acquire(t.Context(), fence.Resource(name))
		if err != nil {
			t.Fatal(name, err)
		}
		return lease
	}
	stale := func(name, when string) {
		for _, lease := range []*lockclient.Lease{before[name], lost[name]} {
			if err := p.check(t, lease); !fence.IsStale(err) {
				t.Errorf("%s: token %d behind %s: %v", name, lease.Token(), when, err)
			}
		}
	}
	for name, store := range stores {
		clients[name] = newClient(t, store, lockclient.Options{Sealers: sealers[name], TTL: 6 * time.Second})
		before[name] = acquire(name)
	}
	p.fallBehind(t)
	for name := range stores {
		release(t, before[name])
		lost[name] = acquire(name)
		if err := p.check(t, before[name]); !fence.IsStale(err) {
			t.Errorf("%s: token %d: %v", name, before[name].Token(), err)
		}
	}
	p.failOver(t)
	for name := range stores {
		stale(name, "the promotion")
		<-lost[name].Context().Done()
		if cause := context.Cause(lost[name].Context()); !errors.Is(cause, lockclient.ErrFailover) {
			t.Errorf("%s: the lease ends with %v", name, cause)
		}
		next := acquire(name)
		if next.Token() <= lost[name].Token() || next.Token() >= 1<<53 {
			t.Errorf("%s: token %d behind %d", name, next.Token(), lost[name].Token())
		}
		if err := p.check(t, next); err != nil {
			t.Error(name, err)
		}
		stale(name, "the next grant")
		release(t, next)
		if after := acquire(name); after.Token() <= next.Token() {
			t.Errorf("%s: token %d behind %d", name, after.Token(), next.Token())
		}
	}
}
