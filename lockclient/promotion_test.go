package lockclient_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/etcd"
	"github.com/wirefence/wirefence/lockclient/postgres"
	"github.com/wirefence/wirefence/lockclient/redis"
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
	ctx := t.Context()
	p := &promoted{}
	var err error
	p.primary = stack.Started(servers.StartPostgres(ctx, servers.PostgresConfig{})).EndWith(t)
	conn, err := pgx.Connect(ctx, p.primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	migrate(t, conn)
	p.standby = stack.Started(p.primary.StartStandby(ctx)).EndWith(t)
	p.pool, err = pgxpool.New(ctx, "postgres://postgres@"+p.primary.Addr()+","+p.standby.Addr()+"/postgres?sslmode=disable&target_session_attrs=read-write")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.pool.Close)
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
func (p *promoted) check(f fence.Fence) error {
	for end := time.Now().Add(stack.Patience); ; {
		_, err := p.pool.Exec(context.Background(), "SELECT wirefence.check($1)", f.String())
		if err == nil || fence.IsRefusal(err) || time.Now().After(end) {
			return err
		}
		time.Sleep(20 * time.Millisecond) // the pool has connections yet to the server that is no more
	}
}

// In every store the holder of a lease learns of the promotion, and the next grant is
// valid.
//
// Evidence: I9
func TestHoldersCarryOnBehindAPromotion(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, pool *pgxpool.Pool) (lockclient.Store, []lockclient.Sealer){
		"postgres": func(_ *testing.T, pool *pgxpool.Pool) (lockclient.Store, []lockclient.Sealer) {
			return postgres.New(pool), nil
		},
		"redis": func(t *testing.T, pool *pgxpool.Pool) (lockclient.Store, []lockclient.Sealer) {
			return redisStore(t, startRedis(t)), []lockclient.Sealer{lockclient.PostgresSealer{Querier: pool, Source: redis.Source}}
		},
		"etcd": func(t *testing.T, pool *pgxpool.Pool) (lockclient.Store, []lockclient.Sealer) {
			stack.NeedsMore(t, "etcd")
			server := stack.Started(servers.StartEtcd(t.Context())).EndWith(t)
			store, err := etcd.Open(server.URL())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			return store, []lockclient.Sealer{lockclient.PostgresSealer{Querier: pool, Source: etcd.Source}}
		},
		"zookeeper": func(t *testing.T, pool *pgxpool.Pool) (lockclient.Store, []lockclient.Sealer) {
			stack.NeedsMore(t, "ZooKeeper")
			server := stack.Started(servers.StartZooKeeper(t.Context())).EndWith(t)
			store, err := zookeeper.Open(server.URL())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			return store, []lockclient.Sealer{lockclient.PostgresSealer{Querier: pool, Source: zookeeper.Source}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPromoted(t)
			store, sealers := open(t, p.pool)
			client := newClient(t, store, lockclient.Options{Sealers: sealers, TTL: 6 * time.Second})
			before := acquire(t, client)
			p.fallBehind(t)
			release(t, before)
			lost := acquire(t, client)
			if err := p.check(before.Fence()); !fence.IsStale(err) {
				t.Errorf("token %d: %v", before.Token(), err)
			}
			p.failOver(t)
			for _, lease := range []*lockclient.Lease{before, lost} {
				if err := p.check(lease.Fence()); !fence.IsStale(err) {
					t.Errorf("token %d behind the promotion: %v", lease.Token(), err)
				}
			}
			<-lost.Context().Done()
			if cause := context.Cause(lost.Context()); !errors.Is(cause, lockclient.ErrFailover) {
				t.Errorf("the lease ends with %v", cause)
			}
			next := acquire(t, client)
			if next.Token() <= lost.Token() || next.Token() >= 1<<53 {
				t.Errorf("token %d behind %d", next.Token(), lost.Token())
			}
			if err := p.check(next.Fence()); err != nil {
				t.Error(err)
			}
			for _, lease := range []*lockclient.Lease{before, lost} {
				if err := p.check(lease.Fence()); !fence.IsStale(err) {
					t.Errorf("token %d behind the next grant: %v", lease.Token(), err)
				}
			}
			release(t, next)
			if after := acquire(t, client); after.Token() <= next.Token() {
				t.Errorf("token %d behind %d", after.Token(), next.Token())
			}
		})
	}
}
