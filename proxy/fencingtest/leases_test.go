package fencingtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

func startRedis(t *testing.T) *servers.Redis {
	t.Helper()
	r, err := servers.StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// lockClient takes leases from Redis and seals them in the database.
func (w *world) lockClient(t *testing.T, r *servers.Redis, ttl time.Duration) *lockclient.Client {
	t.Helper()
	store, err := redis.Open(r.URL())
	if err != nil {
		t.Fatal(err)
	}
	client, err := lockclient.New(store, lockclient.Options{TTL: ttl, Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: w.Direct(t)}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stack.Patience)
		defer cancel()
		_ = client.Close(ctx)
		_ = store.Close()
	})
	return client
}

func acquire(t *testing.T, client *lockclient.Client) *lockclient.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
	defer cancel()
	lease, err := client.Acquire(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func release(t *testing.T, lease *lockclient.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Evidence: I1
func TestTokenRisesOnTakeover(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		r := startRedis(t)
		a, b := w.lockClient(t, r, time.Minute), w.lockClient(t, r, time.Minute)
		var last fence.Token
		for range 3 {
			for _, client := range []*lockclient.Client{a, b} {
				lease := acquire(t, client)
				if lease.Token() <= last {
					t.Errorf("token %d after %d", lease.Token(), last)
				}
				last = lease.Token()
				if sealed := w.count(t, "select last_token from wirefence.resource_locks where resource_id = 'orders'"); fence.Token(sealed) != last {
					t.Errorf("token %d is out, %d is sealed", last, sealed)
				}
				release(t, lease)
			}
		}
	})
}

func TestLatestTokenWrites(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		r := startRedis(t)
		client := w.lockClient(t, r, time.Minute)
		release(t, acquire(t, client))
		lease := acquire(t, client)
		c := w.connect(t)
		for _, p := range protocols {
			stack.WantState(t, p.run(c, "insert into jobs values (1)"+lease.Fence().Comment()), "", p.name)
			c.Must(lease.Fence().Session())
			stack.WantState(t, p.run(c, "insert into jobs values (1)"), "", p.name)
			c.Must("reset wirefence.token")
		}
		w.wantRows(t, 6)
	})
}

func TestOlderTokenGetsExpectedError(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		r := startRedis(t)
		client := w.lockClient(t, r, time.Minute)
		old := acquire(t, client)
		release(t, old)
		current := acquire(t, client)
		c := w.connect(t)
		for _, p := range protocols {
			err := p.run(c, insert+old.Fence().Comment())
			if !fence.IsStale(err) || !fence.IsRefusal(err) {
				t.Fatalf("%s: %v", p.name, err)
			}
			e := err.(*pgconn.PgError)
			if e.Severity != "ERROR" || e.Code != "WF001" || e.Hint == "" || e.Position != 0 || e.Where != "" {
				t.Errorf("%s: %+v", p.name, e)
			}
			for _, part := range []string{`"orders"`, fmt.Sprintf("presented token %d", old.Token()), fmt.Sprintf("current token %d", current.Token()), "granted to", current.Holder(), " at "} {
				if !strings.Contains(e.Detail, part) {
					t.Errorf("%s: %q lacks %q", p.name, e.Detail, part)
				}
			}
		}
		c.Must("insert into jobs values (1)") // the connection lives on
		w.wantRows(t, 1)
	})
}

// Two clients write without a pause while the newer token is sealed.
func TestOfTwoConcurrentTokensOnlyTheNewerWrites(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.unseal(t)
		w.Seal(t, "orders", 33)
		older, newer := newGate(20), newGate(20)
		over := make(chan struct{})
		var writers sync.WaitGroup
		for token, g := range map[int]*gate{33: older, 34: newer} {
			c := w.connect(t, "user", "app")
			p := protocols[token%2]
			writers.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
					}
					err := p.run(c, fmt.Sprintf("insert into jobs values (%d) /*wirefence.token='orders=%d'*/", token, token))
					switch got := stack.State(err); got {
					case "":
						g.pass()
					case "WF003":
						if token != 34 {
							t.Errorf("%d: %v", token, err)
						}
					case "WF001":
						if token != 33 {
							t.Errorf("%d: %v", token, err)
						}
					default:
						t.Errorf("%d: %v", token, err)
						return
					}
				}
			})
		}
		older.wait(t)
		w.wantRowsOf(t, 34, 0)
		w.Seal(t, "orders", 34)
		before := w.rowsOf(t, 33)
		newer.wait(t)
		close(over)
		writers.Wait()
		if after := w.rowsOf(t, 33); after != before || before == 0 {
			t.Errorf("%d rows of the older token at the seal, %d at the end", before, after)
		}
	})
}

// A holder is stopped until its lease has expired. Another takes over and writes. Then the
// first goes on, and its writes are refused.
func TestPausedHolderIsRefusedAfterTakeover(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		r := startRedis(t)
		h, token := w.startHolder(t, r.URL())
		if got := h.write("before the pause"); got != "" {
			t.Fatalf("the holder's write: %s", got)
		}
		w.wantRows(t, 1)
		h.signal(syscall.SIGSTOP)
		lease := acquire(t, w.lockClient(t, r, time.Minute))
		if lease.Token() <= token {
			t.Errorf("token %d after %d", lease.Token(), token)
		}
		c := w.connect(t)
		c.Must("insert into jobs values (2, 'by the new holder')" + lease.Fence().Comment())
		h.signal(syscall.SIGCONT)
		for range 3 {
			if got := h.write("behind the pause"); got != "WF001" {
				t.Errorf("the zombie's write: %q", got)
			}
		}
		w.wantRows(t, 2)
	})
}

// The next token is higher even when Redis has lost its data.
func TestRedisThatForgets(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		r := startRedis(t)
		a, b := w.lockClient(t, r, time.Minute), w.lockClient(t, r, time.Minute)
		admin := goredis.NewClient(&goredis.Options{Addr: r.Addr()})
		t.Cleanup(func() { _ = admin.Close() })
		issued := map[fence.Token]bool{}
		var last fence.Token
		c := w.connect(t)
		next := func(client *lockclient.Client, what string) *lockclient.Lease {
			t.Helper()
			lease := acquire(t, client)
			if lease.Token() <= last || issued[lease.Token()] {
				t.Errorf("%s: token %d after %d", what, lease.Token(), last)
			}
			last = lease.Token()
			issued[last] = true
			c.Must("insert into jobs values (1)" + lease.Fence().Comment())
			return lease
		}
		for range 3 {
			release(t, next(a, "at first"))
		}
		zombie := next(a, "before a flush")
		if err := admin.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		lease := next(b, "after a flush")
		c.Fails(insert+zombie.Fence().Comment(), "WF001")
		release(t, lease)
		zombie = next(b, "before a crash")
		r.Kill()
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		lease = next(a, "after a crash")
		c.Fails(insert+zombie.Fence().Comment(), "WF001")
		release(t, lease)
		w.wantRowsOf(t, 33, 0)
	})
}
