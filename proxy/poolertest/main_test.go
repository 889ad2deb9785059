// Package poolertest runs chains of a real PgBouncer and the proxy, in either
// order: what a fence is worth where clients share server connections.
package poolertest

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

//go:embed testdata/objects.sql
var objects string

var suite = stack.Suite{Objects: objects}

func TestMain(m *testing.M) {
	os.Exit(suite.Run(m, all.stop))
}

// place is a database of a test's own, seen past proxy and pooler.
type place struct {
	*stack.DB
	t *testing.T
}

func newPlace(t *testing.T, pg *servers.Postgres) *place {
	t.Helper()
	return &place{stack.NewDB(t, pg, objects), t}
}

// standing is what tests share: a PgBouncer pools each database by itself, and a
// proxy knows nothing of one session in another.
type standing struct {
	mu    sync.Mutex
	addrs map[string]string
	stops []func()
}

var all = standing{addrs: map[string]string{}}

// once returns the address of what make starts, which it does only once for
// what is described.
func (s *standing) once(t *testing.T, what string, make func() (addr string, stop func(), err error)) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr, ok := s.addrs[what]; ok {
		return addr
	}
	addr, stop, err := make()
	if err != nil {
		t.Fatal(err)
	}
	s.addrs[what] = addr
	s.stops = append(s.stops, stop)
	return addr
}

func (s *standing) stop() {
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
}

// pooler returns a PgBouncer before upstream.
func (p *place) pooler(upstream string, cfg servers.PgBouncerConfig) string {
	p.t.Helper()
	cfg.Upstream, cfg.Clients = upstream, 100
	return all.once(p.t, fmt.Sprintf("%+v", cfg), func() (string, func(), error) {
		b, err := servers.StartPgBouncer(context.Background(), cfg)
		if err != nil {
			return "", nil, err
		}
		return b.Addr(), b.Close, nil
	})
}

// fencing returns a proxy before upstream; parameters are of its URL.
func (p *place) fencing(upstream, parameters string, o proxy.Options) string {
	p.t.Helper()
	o.Upstream = "postgres://" + upstream + "/?" + parameters
	return all.once(p.t, fmt.Sprint(o.Upstream, o.UnfencedWrites, o.Lease), func() (string, func(), error) {
		return startProxy(o)
	})
}

func startProxy(o proxy.Options) (addr string, stop func(), err error) {
	o.DrainTimeout = time.Second
	r, err := stack.Start(o)
	if err != nil {
		return "", nil, err
	}
	return r.Addr, func() { _ = r.Stop() }, nil
}

// Ways to pool: clients share one or two server connections of their database,
// from transaction to transaction, or have one each.
var (
	one  = servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 1}
	two  = servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 2}
	each = servers.PgBouncerConfig{PoolMode: "session"}
)

// behind is the chain application, proxy, pooler, PostgreSQL.
func behind(t *testing.T, cfg servers.PgBouncerConfig, parameters string, o proxy.Options) (*place, string) {
	t.Helper()
	p := newPlace(t, suite.Server(t, 0))
	return p, p.fencing(p.pooler(p.Addr(), cfg), parameters, o)
}

// before is the chain application, pooler, proxy, PostgreSQL.
func before(t *testing.T, cfg servers.PgBouncerConfig, o proxy.Options) (*place, string) {
	t.Helper()
	p := newPlace(t, suite.Server(t, 0))
	return p, p.pooler(p.fencing(p.Addr(), "", o), cfg)
}

// number is the one value of a query past proxy and pooler.
func (p *place) number(sql string, args ...any) int64 {
	p.t.Helper()
	return stack.Value[int64](p.t, p.DB, sql, args...)
}

// wantRows says how many rows were written with a token; 0 is for none.
func (p *place) wantRows(token, want int64) {
	p.t.Helper()
	if got := p.number("SELECT count(*) FROM jobs WHERE coalesce(token, 0) = $1", token); got != want {
		p.t.Errorf("%d rows were written with token %d, want %d", got, token, want)
	}
}
