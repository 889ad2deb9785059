//go:build linux

package loadtest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/model"
	"github.com/wirefence/wirefence/proxy"
)

var clients = flag.Int("clients", 120, "how many soaking clients there are at once")

// busyClients is how many clients do anything; the others think between their queries.
const busyClients = 120

// heapBound is by how many bytes the heap may have grown once all have left.
const heapBound = 8 << 20

// soak is a server, and two proxies with their clients.
type soak struct {
	pg             *servers.Postgres
	steps          *stack.Steps
	fault          func(format string, args ...any) // what a client takes for wrong
	proxies        []*stack.Running
	registries     []*prometheus.Registry
	database       string
	length         time.Duration
	think          time.Duration // at most, between queries
	logins, fenced atomic.Int64
	current, next  atomic.Int64    // the token that is recorded, and the one that may be
	acts           []atomic.Int64  // that came to their end
	kinds          [4]atomic.Int64 // logins by proxy and client's TLS
}

func TestSoak(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s := startSoak(t, cmp.Or(*length, 15*time.Second))
	for manner := range manners { // what is kept for ever is there now
		for n := range uint64(8) {
			if err := s.act(manner, rand.New(rand.NewPCG(1, n))); err != nil {
				t.Fatalf("%s: %v", manners[manner].name, err)
			}
		}
	}
	s.quiet(t)
	descriptors, heap := openDescriptors(t), heapInUse()

	s.think = min(s.length/10, 25*time.Second) // less than the server stays
	s.run(t)
	for i, m := range manners {
		t.Logf("%-24s %d", m.name, s.acts[i].Load())
		if s.acts[i].Load() == 0 {
			t.Errorf("no client ever came through with %s", m.name)
		}
	}
	for i := range s.kinds {
		t.Logf("TLS to the server: %t, to the proxy: %t: %d logins", i/2 == 1, i%2 == 1, s.kinds[i].Load())
	}

	s.lockless(t)
	s.quiet(t)
	stack.Eventually(t, "no descriptors are left over", func() bool { return openDescriptors(t) <= descriptors })
	if grown := int64(heapInUse()) - int64(heap); grown > heapBound {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	admin := stack.Connect(t, s.pg.URL(s.database))
	stack.Eventually(t, "no backends are left over", func() bool {
		var n int
		err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()").Scan(&n)
		return err == nil && n == 0
	})
	wrong, err := s.steps.Follow(t.Context(), admin, true)
	if err = errors.Join(err, wrong); err != nil {
		t.Error(err)
	}
	if none := s.steps.Missing(model.Wanted, model.Sealed, model.Granted, model.Checked, model.Held, model.Unheld, model.Ran, model.Commits); len(none) > 0 {
		t.Errorf("no step is %v", none)
	}
	t.Logf("steps: %v", s.steps.Counts())
	_ = admin.Close(context.Background())
	s.counted(t)
	for _, r := range s.proxies {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}
	s.pg.Close() // its process is waited for by a goroutine, too
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// The steps of clients that come and go show what checks do wrong. Seals that return early show in
// the contention test: here clients rarely write while one waits.
func TestTheSoakFindsDefects(t *testing.T) {
	for name, defect := range map[string]string{
		"stale tokens pass":   stack.Defect("verdict", "'WF001'", "'pass'"),
		"checks take no lock": stack.Defect("take_locks", "pg_try_advisory_xact_lock_shared(pair.key)", "true"),
	} {
		t.Run(name, func(t *testing.T) {
			s := startSoak(t, 5*time.Second)
			s.fault = func(string, ...any) {} // the steps have to show it
			stack.Exec(t, s.pg.URL(s.database), defect)
			s.run(t)
			wrong, err := s.steps.Follow(t.Context(), stack.Connect(t, s.pg.URL(s.database)), true)
			if err != nil || wrong == nil {
				t.Errorf("the steps show nothing (%v): %v", s.steps.Counts(), err)
			}
			t.Log(wrong)
		})
	}
}

// startSoak starts the server and the proxies.
func startSoak(t *testing.T, length time.Duration) *soak {
	t.Helper()
	ca := authority.New(t)
	server, between := ca.Issue(t, "db.test", "127.0.0.1"), ca.Issue(t, "proxy.test", "127.0.0.1")
	pg := start(t, servers.PostgresConfig{
		CertFile: server.CertFile, KeyFile: server.KeyFile, Settings: map[string]string{"max_connections": strconv.Itoa(2**clients + 50)},
	})
	s := &soak{pg: pg, fault: t.Errorf, length: length, think: 10 * time.Millisecond, database: stack.Database(t, pg), acts: make([]atomic.Int64, len(manners))}
	stack.Exec(t, pg.URL(s.database), "CREATE TABLE jobs (worker text, token bigint)", "SELECT wirefence.seal('orders', 34, 'B')")
	s.current.Store(34)
	s.next.Store(34)
	admin := stack.Connect(t, pg.URL(s.database))
	s.steps = stack.TellSteps(t, admin, "jobs", "orders")
	_ = admin.Close(t.Context())
	for _, mode := range []string{"disable", "verify-full&sslrootcert=" + ca.CAFile} {
		registry := prometheus.NewRegistry()
		r, err := stack.Start(proxy.Options{
			Upstream: "postgres://" + pg.Addr() + "/?sslmode=" + mode, TLS: proxy.TLS{CertFile: between.CertFile, KeyFile: between.KeyFile},
			Registerer: registry, MaxConnections: 2 * *clients, IdleTimeout: time.Minute, TransactionTimeout: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.proxies, s.registries = append(s.proxies, r), append(s.registries, registry)
	}
	return s
}

// run lets clients come and go, and the server go and come.
func (s *soak) run(t *testing.T) {
	ctx, end := context.WithTimeout(t.Context(), s.length)
	defer end()
	var all sync.WaitGroup
	for n := range *clients {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(n)))
			for ctx.Err() == nil {
				manner := r.IntN(len(manners))
				if n >= busyClients {
					manner = thinking
				}
				switch err := s.act(manner, r); {
				case err == nil:
					s.acts[manner].Add(1)
				case errors.Is(err, errWrong):
					s.fault("%s: %v", manners[manner].name, err)
					return
				default:
					pause(r, 200*time.Millisecond) // the server is away
				}
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			_ = s.takeOver(ctx) // or the server is away
			time.Sleep(100 * time.Millisecond)
		}
	})
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			all.Wait()
			return
		case <-time.After(max(s.length/5, 3*time.Second)):
		}
		if n%2 == 0 {
			s.pg.Stop()
		} else {
			s.pg.Kill()
		}
		if err := s.pg.Start(t.Context()); err != nil {
			t.Errorf("the server does not come back: %v", err)
			end()
		}
	}
}

// takeOver seals the next token, and tells the steps of the grant.
func (s *soak) takeOver(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.pg.URL(s.database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	next := s.current.Load() + 1
	s.next.Store(next)
	var sealed bool
	if err := conn.QueryRow(ctx, "SELECT wirefence.seal('orders', $1, 'B')", next).Scan(&sealed); err != nil {
		return err
	}
	s.current.Store(next) // if it isn't sealed now, it was before
	if sealed {
		_, err = conn.Exec(ctx, "SELECT wirefence.tell_step('granted', wirefence.step_actor(false), 'orders', $1)", next)
	}
	return err
}

// lockless looks that no advisory lock is left, though a session that held is still
// there, idle.
func (s *soak) lockless(t *testing.T) {
	t.Helper()
	idle, err := s.connect(t.Context(), rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close(context.Background()) }()
	for range 3 {
		if err := current(t.Context(), s, idle, nil); err != nil {
			t.Fatal(err)
		}
	}
	admin := stack.Connect(t, s.pg.URL(s.database))
	defer func() { _ = admin.Close(context.Background()) }()
	stack.Eventually(t, "no advisory locks are left over", func() bool {
		var n int
		err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").Scan(&n)
		return err == nil && n == 0
	})
}

// quiet waits until the proxies say that they serve nobody.
func (s *soak) quiet(t *testing.T) {
	t.Helper()
	stack.Eventually(t, "no sessions are left over", func() bool { return s.metric(t, "wirefence_sessions") == 0 })
}

// counted holds the proxies' figures against what the clients have seen.
func (s *soak) counted(t *testing.T) {
	t.Helper()
	for name, least := range map[string]int64{
		"wirefence_logins_total": s.logins.Load(), "wirefence_checks_total": s.fenced.Load(), "wirefence_cancel_requests_total": 1,
	} {
		if got := s.metric(t, name); got < float64(least) {
			t.Errorf("%s is %v, but clients have seen %d", name, got, least)
		}
	}
	for _, name := range []string{"wirefence_protocol_errors_total", "wirefence_timeouts_total"} {
		if got := s.metric(t, name); got != 0 {
			t.Errorf("%s is %v", name, got)
		}
	}
}

// metric sums a metric over the proxies.
func (s *soak) metric(t *testing.T, name string) (sum float64) {
	t.Helper()
	for _, registry := range s.registries {
		sum += stack.Metric(t, registry, name, nil)
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

// connect connects to either proxy, with TLS or without.
func (s *soak) connect(ctx context.Context, r *rand.Rand) (*pgx.Conn, error) {
	to, tls := r.IntN(2), r.IntN(2)
	url := fmt.Sprintf("postgres://postgres@%s/%s?sslmode=%s", s.proxies[to].Addr, s.database, []string{"disable", "require"}[tls])
	conn, err := pgx.Connect(ctx, url)
	if err == nil {
		s.logins.Add(1)
		s.kinds[2*to+tls].Add(1)
	}
	return conn, err
}
