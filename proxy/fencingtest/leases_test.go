package fencingtest

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

func startRedis(t *testing.T) *servers.Redis {
	t.Helper()
	return stack.Started(servers.StartRedis(t.Context())).EndWith(t)
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
