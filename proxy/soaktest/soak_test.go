//go:build linux

// Package soaktest lets many clients of all manners use one proxy for a while,
// with a server that is stopped and crashes under them, and then looks for what
// was left behind.
package soaktest

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

var length = flag.Duration("soak", 15*time.Second, "how long clients come and go")

const (
	clients = 120
	// heapBound is by how many bytes the heap may have grown once all have left.
	heapBound = 8 << 20
)

// soak is a proxy with its clients.
type soak struct {
	addr, database string
	logins, fenced atomic.Int64
	acts           []atomic.Int64 // that came to their end
}

func TestSoak(t *testing.T) {
	pg, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close()
	s := &soak{database: stack.Database(t, pg), acts: make([]atomic.Int64, len(manners))}
	stack.Exec(t, pg.URL(s.database), "CREATE TABLE jobs (worker text)", "SELECT wirefence.seal('orders', 34, 'B')")

	before := goleak.IgnoreCurrent()
	registry := prometheus.NewRegistry()
	r, err := stack.Start(proxy.Options{
		Upstream: "postgres://" + pg.Addr() + "/", Registerer: registry,
		IdleTimeout: time.Minute, TransactionTimeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.addr = r.Addr
	for manner := range manners { // what is kept for ever is there now
		if err := s.act(manner, rand.New(rand.NewPCG(1, 1))); err != nil {
			t.Fatalf("%s: %v", manners[manner].name, err)
		}
	}
	quiet(t, registry)
	descriptors, heap := openDescriptors(t), heapInUse()

	s.run(t, pg)

	s.lockless(t, pg)
	quiet(t, registry)
	stack.Eventually(t, "no descriptors are left over", func() bool { return openDescriptors(t) <= descriptors })
	if grown := int64(heapInUse()) - int64(heap); grown > heapBound {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	admin := stack.Connect(t, pg.URL(s.database))
	stack.Eventually(t, "no backends are left over", func() bool {
		var n int
		err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()").Scan(&n)
		return err == nil && n == 0
	})
	_ = admin.Close(context.Background())
	s.counted(t, registry)
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	pg.Close() // its process is waited for by a goroutine, too
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// run lets clients come and go, and the server go and come.
func (s *soak) run(t *testing.T, pg *servers.Postgres) {
	ctx, end := context.WithTimeout(t.Context(), *length)
	defer end()
	var all sync.WaitGroup
	for n := range clients {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(n)))
			for ctx.Err() == nil {
				manner := r.IntN(len(manners))
				switch err := s.act(manner, r); {
				case err == nil:
					s.acts[manner].Add(1)
				case errors.Is(err, errWrong):
					t.Errorf("%s: %v", manners[manner].name, err)
					return
				}
			}
		})
	}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			all.Wait()
			for i, m := range manners {
				t.Logf("%-24s %d", m.name, s.acts[i].Load())
				if s.acts[i].Load() == 0 {
					t.Errorf("no client ever came through with %s", m.name)
				}
			}
			return
		case <-time.After(max(*length/5, 3*time.Second)):
		}
		if n%2 == 0 {
			pg.Stop()
		} else {
			pg.Kill()
		}
		if err := pg.Start(t.Context()); err != nil {
			t.Errorf("the server does not come back: %v", err)
			end()
		}
	}
}

// lockless looks that no advisory lock is left, though a session that held is still
// there, idle.
func (s *soak) lockless(t *testing.T, pg *servers.Postgres) {
	t.Helper()
	idle, err := s.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close(context.Background()) }()
	for range 3 {
		if _, err := idle.Exec(t.Context(), "INSERT INTO jobs VALUES ('B') /*wirefence.token='orders=34'*/"); err != nil {
			t.Fatal(err)
		}
	}
	admin := stack.Connect(t, pg.URL(s.database))
	defer func() { _ = admin.Close(context.Background()) }()
	stack.Eventually(t, "no advisory locks are left over", func() bool {
		var n int
		err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").Scan(&n)
		return err == nil && n == 0
	})
}

// quiet waits until the proxy says that it serves nobody.
func quiet(t *testing.T, registry *prometheus.Registry) {
	t.Helper()
	stack.Eventually(t, "no sessions are left over", func() bool { return metric(t, registry, "wirefence_sessions") == 0 })
}

// counted holds the proxy's figures against what the clients have seen.
func (s *soak) counted(t *testing.T, registry *prometheus.Registry) {
	t.Helper()
	for name, least := range map[string]int64{
		"wirefence_sessions_total": s.logins.Load(), "wirefence_checks_total": s.fenced.Load(), "wirefence_cancel_requests_total": 1,
	} {
		if got := metric(t, registry, name); got < float64(least) {
			t.Errorf("%s is %v, but clients have seen %d", name, got, least)
		}
	}
	for _, name := range []string{"wirefence_protocol_errors_total", "wirefence_timeouts_total"} {
		if got := metric(t, registry, name); got != 0 {
			t.Errorf("%s is %v", name, got)
		}
	}
}

// metric returns a gauge's or a counter's value, summed over its labels.
func metric(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func heapInUse() uint64 {
	var stats runtime.MemStats
	for range 3 { // pools are emptied by the second
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func (s *soak) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, stack.URL(s.addr, s.database))
	if err == nil {
		s.logins.Add(1)
	}
	return conn, err
}
