package fencingtest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// poolers are the PgBouncers that tests share: each pools every database by itself.
type poolers struct {
	mu  sync.Mutex
	all map[string]*servers.PgBouncer
}

var started = poolers{all: map[string]*servers.PgBouncer{}}

func (p *poolers) stop() {
	for _, b := range p.all {
		b.Close()
	}
}

// pgbouncer returns the address of a PgBouncer before upstream.
func pgbouncer(t testing.TB, upstream string, cfg servers.PgBouncerConfig) string {
	t.Helper()
	stack.NeedsMore(t, "PgBouncer")
	cfg.Upstream, cfg.Clients = upstream, 100
	what := fmt.Sprintf("%+v", cfg)
	started.mu.Lock()
	defer started.mu.Unlock()
	b := started.all[what]
	if b == nil {
		var err error
		if b, err = servers.StartPgBouncer(context.Background(), cfg); err != nil {
			t.Fatal(err)
		}
		started.all[what] = b
	}
	return b.Addr()
}

// Ways to pool: clients share one or two server connections of their database,
// from transaction to transaction, or have one each.
var (
	one  = servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 1}
	two  = servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 2}
	each = servers.PgBouncerConfig{PoolMode: "session"}
)

// newPooled is a world with a function that sets the variable.
func newPooled(t testing.TB, major int) *world {
	t.Helper()
	w := newWorld(t, major)
	w.Exec(t, enter)
	return w
}

// poolerBehind is the chain application, proxy, pooler, PostgreSQL.
func poolerBehind(t testing.TB, cfg servers.PgBouncerConfig, o proxy.Options) *world {
	t.Helper()
	return newPooled(t, oldAndNew[0]).beforePooler(t, cfg, o)
}

// beforePooler is the world behind a proxy with a pooler behind it.
func (w *world) beforePooler(t testing.TB, cfg servers.PgBouncerConfig, o proxy.Options) *world {
	t.Helper()
	o.Upstream = "postgres://" + pgbouncer(t, w.Addr(), cfg) + "/" + o.Upstream
	return w.own(t, o)
}

// poolerBefore is the chain application, pooler, proxy, PostgreSQL.
func poolerBefore(t testing.TB, cfg servers.PgBouncerConfig, o proxy.Options) *world {
	t.Helper()
	return newPooled(t, oldAndNew[0]).behindPooler(t, cfg, o)
}

// behindPooler is the world behind a pooler with a proxy behind it.
func (w *world) behindPooler(t testing.TB, cfg servers.PgBouncerConfig, o proxy.Options) *world {
	t.Helper()
	own := w.own(t, o)
	return own.at(pgbouncer(t, own.proxy, cfg))
}

// leave sets a fence on the pooler's only server connection, past the proxy. The next client
// there finds it.
func (w *world) leave(t testing.TB, fence string) {
	t.Helper()
	c := w.at(pgbouncer(t, w.Addr(), one)).connect(t)
	c.Must("SET wirefence.token = '" + fence + "'")
	c.Close()
}

// hangUp ends the connection, and with it the transaction that it left open.
func hangUp(c *client) {
	c.T.Helper()
	if c.TxStatus() != 'I' {
		c.Must("ROLLBACK")
	}
	c.Close()
}
