package metrics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/postgres"
	"github.com/wirefence/wirefence/lockclient/redis"
	"github.com/wirefence/wirefence/migrations"
)

var (
	suite      = stack.Suite{Objects: "CREATE ROLE issuer LOGIN IN ROLE wirefence_issuer", Check: func() error { return goleak.Find() }}
	leaseStore *servers.Redis
)

func TestMain(m *testing.M) {
	var err error
	if leaseStore, err = servers.StartRedis(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(suite.Run(m, leaseStore.Close))
}

// scrape returns a registry's values by name and labels; of histograms the number of
// observations.
func scrape(t *testing.T, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			all[strings.TrimPrefix(name, "wirefence_")] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// want fails unless the metrics have these values, and no others.
func want(t *testing.T, when string, got, wanted map[string]float64) {
	t.Helper()
	metrics := map[string]bool{}
	for name, value := range wanted {
		family, _, _ := strings.Cut(name, " ")
		metrics[family] = true
		if is, ok := got[name]; !ok || is != value {
			t.Errorf("%s: %s is %v (%v), not %v", when, name, is, ok, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		family, _, _ := strings.Cut(name, " ")
		if _, ok := wanted[name]; metrics[family] && !ok {
			t.Errorf("%s: %s is there", when, name)
		}
	}
}

// world is a database whose resources the test reads as an issuer.
type world struct {
	*stack.DB
	*Resources
	t        *testing.T
	registry *prometheus.Registry
	log      *stack.Log
	away     bool
}

// issuers is a pool for the database that has db.Name when it connects. It fails to connect
// while away, which may be nil, is true.
func issuers(t *testing.T, db *stack.DB, away *bool) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.URLFor("issuer", db.Name))
	if err != nil {
		t.Fatal(err)
	}
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if away != nil && *away {
			return errAway
		}
		c.Database = db.Name
		return nil
	}
	return stack.Started(pgxpool.NewWithConfig(t.Context(), cfg)).EndWith(t)
}

var errAway = errors.New("the database is away")

func newWorld(t *testing.T, major int, o Options) *world {
	t.Helper()
	w := &world{DB: suite.Database(t, major), t: t, registry: prometheus.NewRegistry(), log: &stack.Log{}}
	o.Logger = w.log.Logger()
	o.Pool = issuers(t, w.DB, &w.away)
	var err error
	if w.Resources, err = NewResources(o); err != nil {
		t.Fatal(err)
	}
	w.registry.MustRegister(w.Resources)
	return w
}

// reads reads once and returns the metrics.
func (w *world) reads() map[string]float64 {
	w.t.Helper()
	w.round(w.t.Context())
	return scrape(w.t, w.registry)
}

func TestResourcesAreTold(t *testing.T) {
	stack.OnEach(t, stack.OldAndNew, func(t *testing.T, major int) {
		w := newWorld(t, major, Options{Names: NewNames(4, "met", "Größe")})
		if all := scrape(t, w.registry); len(all) != 0 {
			t.Errorf("before the first reading there is %v", all)
		}
		w.Exec(t, `SELECT wirefence.seal('zz', 1)`, `SELECT wirefence.seal('aa', 1)`, `SELECT wirefence.seal('orders', 33, 'a/1', 'redis')`, `SELECT wirefence.seal('a', 7, 'a/1')`)
		w.Exec(t, `SELECT wirefence.acquire('Größe', 'w', '1 hour')`)
		all := w.reads()
		want(t, "at first", all, map[string]float64{
			"resource_token orders": 33, "resource_token a": 7, "resource_token Größe": 1,
			"resource_held Größe": 1, "resource_writers orders": 0, "resource_writers a": 0, "resource_writers Größe": 0,
			"database_up": 1, "database_primary": 1, "database_timeline": 1,
			"resource_handoffs_total orders": 0, "resource_handoffs_total a": 0, "resource_handoffs_total Größe": 0, "resource_handoffs_total other": 0,
		})
		if age := float64(time.Now().UnixMicro())/1e6 - all["resource_granted_timestamp_seconds orders"]; age < 0 || age > 60 {
			t.Errorf("the grant is %v s old", age)
		}

		writer := stack.Connect(t, w.URLFor("issuer", w.Name))
		stack.MustExec(t, writer, "BEGIN")
		stack.MustExec(t, writer, "SELECT wirefence.check('a=7,orders=33@redis')")
		idle := stack.Connect(t, w.URLFor("issuer", w.Name))
		stack.MustExec(t, idle, "SELECT wirefence.proxy_hold(1001, 'a=7', NULL, NULL, false, 'needed')")
		w.Exec(t, `UPDATE wirefence.leases SET expires_at = now()`)
		want(t, "with writers", w.reads(), map[string]float64{
			"resource_writers orders": 1, "resource_writers a": 2, "resource_writers Größe": 0, "resource_held Größe": 0,
		})

		w.Exec(t, `UPDATE wirefence.resource_locks SET preempt_after = '0 s'`)
		w.Exec(t, `SELECT wirefence.seal('a', 8, 'b/2')`)
		w.Exec(t, `SELECT wirefence.seal('zz', 2, 'c/3')`, `SELECT wirefence.revoke('orders')`)
		all = w.reads()
		want(t, "behind a takeover", all, map[string]float64{
			"resource_handoffs_total a": 1, "resource_handoffs_total orders": 0, "resource_handoffs_total Größe": 0, "resource_handoffs_total other": 1,
			"resource_ended_sessions_total a": 2, "resource_ended_sessions_total orders": 0, "resource_ended_sessions_total Größe": 0, "resource_ended_sessions_total other": 0,
			"resource_revocations_total a": 0, "resource_revocations_total orders": 1, "resource_revocations_total Größe": 0, "resource_revocations_total other": 0,
		})
		if _, exported := all["resource_granted_timestamp_seconds orders"]; exported {
			t.Error("a revoked resource was granted")
		}

		w.away = true
		w.options.Pool.Reset()
		all = w.reads()
		want(t, "with the database away", all, map[string]float64{"database_up": 0})
		if all["resource_handoffs_total a"] != 1 {
			t.Error("counts are lost with the database away")
		}
		for name := range w.reads() {
			if strings.HasPrefix(name, "resource_token") || strings.HasPrefix(name, "database_timeline") {
				t.Errorf("with the database away there is %s", name)
			}
		}
		w.away = false
		want(t, "with the database back", w.reads(), map[string]float64{
			"database_up": 1, "resource_token a": 8, "resource_token orders": 34, "resource_token Größe": 1,
		})
		for _, message := range []string{"cannot read the resources from the database", "resources can be read from the database again"} {
			if n := strings.Count(w.log.String(), message); n != 1 {
				t.Errorf("%s: logged %d times:\n%s", message, n, w.log.String())
			}
		}
	})
}

// Rows that commit late are counted, and no row twice.
func TestLateHandoffsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0, Options{Names: NewNames(5)})
	w.Exec(t, `SELECT wirefence.seal('orders', 1, 'a/1')`)
	w.reads()
	w.handoffs.settled = w.handoffs.settled.Add(-10 * time.Minute)
	happened := func(ago string) {
		w.Exec(t, `INSERT INTO wirefence.history (at, kind, resource, issued) SELECT clock_timestamp() - interval '`+ago+`', 'handoff', 'orders', random() < 0.5`)
	}
	happened("5 minutes")
	// The seal's own row counts, since the time before it was made to.
	for want, ago := range []string{"0", "2 seconds", "30 seconds"} {
		if n := w.reads()["resource_handoffs_total orders"]; n != float64(want+2) {
			t.Errorf("%v handoffs are counted, not %d", n, want+2)
		}
		happened(ago)
	}
	if n := w.reads()["resource_handoffs_total orders"]; n != 5 {
		t.Errorf("%v handoffs are counted, not 5", n)
	}
	happened("3 minutes")
	w.Exec(t, `DELETE FROM wirefence.history`)
	if n := w.reads()["resource_handoffs_total orders"]; n != 5 {
		t.Errorf("behind a deletion %v handoffs are counted", n)
	}
}

// Handoffs are counted with their waits, with and without ended transactions, whichever client asked for
// them; revocations aren't.
func TestWaitsOfHandoffs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0, Options{Names: NewNames(1, "orders")})
	w.reads()
	w.Exec(t, `INSERT INTO wirefence.history (kind, resource, issued, waited_seconds) VALUES ('handoff', 'orders', true, 0.1), ('handoff', 'orders', false, 5.5),
	    ('handoff', 'x', true, 5.25), ('handoff', 'y', true, 99), ('handoff', 'y', true, -1), ('revocation', 'orders', true, 50)`)
	for range 2 {
		if all := w.reads(); all["handoff_seconds"] != 5 || all["resource_handoffs_total orders"] != 2 || all["resource_handoffs_total other"] != 3 {
			t.Errorf("%v", all)
		}
	}
	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "wirefence_handoff_seconds" {
			continue
		}
		got := map[float64]uint64{}
		for _, b := range f.Metric[0].GetHistogram().Bucket {
			got[b.GetUpperBound()] = b.GetCumulativeCount()
		}
		for bound, n := range map[float64]uint64{0.001: 1, 0.025: 1, 0.1: 2, 5: 2, 6: 4, 60: 4} {
			if got[bound] != n {
				t.Errorf("%d took up to %v s, not %d", got[bound], bound, n)
			}
		}
		if sum := f.Metric[0].GetHistogram().GetSampleSum(); sum < 109.8 || sum > 109.9 {
			t.Errorf("they took %v s in all, not 109.85", sum)
		}
	}
}

// A name that the database's encoding can't represent isn't read.
func TestNamesBeyondTheDatabasesEncoding(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0, Options{Names: NewNames(10, "漢字", "orders")})
	latin := w.Name + "_latin"
	w.Exec(t, `CREATE DATABASE `+latin+` TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'`)
	w.Name = latin
	if err := migrations.Apply(t.Context(), stack.Connect(t, w.URL(latin)), func(string) {}); err != nil {
		t.Fatal(err)
	}
	stack.Exec(t, w.URL(latin)+"&client_encoding=UTF8", `SELECT wirefence.seal('orders', 1), wirefence.seal('Größe', 1)`)
	for range 2 {
		want(t, "in LATIN1", w.reads(), map[string]float64{"resource_token orders": 1, "resource_token Größe": 1, "database_up": 1})
	}
}

// The store tells of leases that it knows, and its calls are measured.
func TestStoresAreMeasured(t *testing.T) {
	t.Parallel()
	db := suite.Database(t, 0)
	pool := stack.Started(pgxpool.New(t.Context(), db.URLFor("issuer", db.Name))).EndWith(t)
	own := postgres.New(pool)
	t.Cleanup(func() { _ = own.Close() })
	remote, err := redis.Open(leaseStore.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remote.Close() })
	for name, backend := range map[string]struct {
		store  Whole
		sealer lockclient.PostgresSealer
		source fence.Source
	}{
		"PostgreSQL": {own, lockclient.PostgresSealer{}, ""},
		"Redis":      {remote, lockclient.PostgresSealer{Querier: pool, Source: redis.Source}, redis.Source},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			stores, err := NewStores(registry)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := NewStores(registry); err == nil {
				t.Error("a process may have two stores")
			}
			if _, known := scrape(t, registry)["store_up"]; known {
				t.Error("a store that nobody called is up or down")
			}
			store := stores.Store(backend.store)
			o := lockclient.Options{TTL: 10 * time.Second}
			if backend.source != "" {
				o.Sealers = []lockclient.Sealer{backend.sealer}
			}
			client, err := lockclient.New(store, o)
			if err != nil {
				t.Fatal(err)
			}
			resource := fence.Resource("by-" + name)
			lease, err := client.Acquire(t.Context(), resource)
			if err != nil {
				t.Fatal(err)
			}
			r, err := NewResources(Options{
				Pool: issuers(t, db, nil), Names: NewNames(10), Looker: store, Source: backend.source,
			})
			if err != nil {
				t.Fatal(err)
			}
			registry.MustRegister(r)
			r.round(t.Context())
			held := "resource_held by-" + name
			all := scrape(t, registry)
			for series, value := range map[string]float64{
				held: 1, "store_request_seconds acquire": 1, "store_errors_total acquire": 0,
			} {
				if all[series] != value {
					t.Errorf("%s is %v, not %v", series, all[series], value)
				}
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.round(t.Context())
			if all := scrape(t, registry); all[held] != 0 || all["store_request_seconds release"] != 1 {
				t.Errorf("released, it is held %v, after %v releases", all[held], all["store_request_seconds release"])
			}
			if err := client.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A store that hangs is down within seconds, and up again when it answers. The log has a line
// for either.
func TestAStoreThatHangsIsDown(t *testing.T) {
	t.Parallel()
	link := stack.Started(servers.StartLink(leaseStore.Addr())).EndWith(t)
	remote, err := redis.Open("redis://" + link.Addr() + "/0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remote.Close() })
	registry := prometheus.NewRegistry()
	stores, err := NewStores(registry)
	if err != nil {
		t.Fatal(err)
	}
	var log stack.Log
	ctx, end := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		stores.Watch(ctx, stores.Store(remote), log.Logger())
	}()
	defer func() {
		end()
		<-over
	}()
	up := func(want float64) func() bool {
		return func() bool { return scrape(t, registry)["store_up"] == want && (stores.Down() == nil) == (want == 1) }
	}
	stack.Eventually(t, "it is up", up(1))
	link.Hold()
	began := time.Now()
	stack.Eventually(t, "it is down", func() bool { return stores.Down() != nil && up(0)() })
	if took := time.Since(began); took > lookPause+lookTime+3*time.Second {
		t.Errorf("that took %v", took)
	}
	link.Restore()
	stack.Eventually(t, "it is up again", up(1))
	for _, message := range []string{`level=ERROR msg="the lease store does not answer`, `level=INFO msg="the lease store answers again"`} {
		if !strings.Contains(log.String(), message) {
			t.Errorf("the log lacks %s:\n%s", message, log.String())
		}
	}
}

// A PostgreSQL that refuses answers; one that shuts down doesn't.
func TestRefusalsAreAnswers(t *testing.T) {
	for code, want := range map[string]bool{"WF008": true, "57P01": false} {
		if got := refuses(&pgconn.PgError{Code: code}); got != want {
			t.Errorf("%s: %v", code, got)
		}
	}
}
