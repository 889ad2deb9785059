package poolertest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// writers are the clients at once, on two server connections, and rounds the
// handoffs that they live through.
const (
	writers = 10
	rounds  = 12
)

// TestManyClientsOverFewConnections lets clients write under each way to carry a
// fence while the token moves on, in both chains. Some notice and some don't.
// The table has the verdict: behind a handoff no row has an older token, and
// none came from a client without a fence where fences are obligatory.
func TestManyClientsOverFewConnections(t *testing.T) {
	for _, major := range []int{0, 18} {
		pg := suite.Server(t, major)
		t.Run(pg.Addr(), func(t *testing.T) {
			t.Run("behind", func(t *testing.T) {
				t.Parallel()
				p := newPlace(t, pg)
				crowd(t, p, p.fencing(p.pooler(pg.Addr(), two), "", proxy.Options{}), true)
			})
			t.Run("before", func(t *testing.T) {
				t.Parallel()
				p := newPlace(t, pg)
				crowd(t, p, p.pooler(p.fencing(pg.Addr(), "", proxy.Options{}), two), false)
			})
		})
	}
}

// crowd runs the writers. setting says that some may set the variable for their
// session.
func crowd(t *testing.T, p *place, addr string, setting bool) {
	ways := []func(*stack.Client, int) error{
		func(c *stack.Client, token int) error { return c.Simple(insert(token, comment(token))) },
		func(c *stack.Client, token int) error { return c.Extended(insert(token, comment(token))) },
		func(c *stack.Client, token int) error {
			return inBlock(c, fmt.Sprintf("SET LOCAL wirefence.token = 'orders=%d'", token), insert(token, ""))
		},
		func(c *stack.Client, token int) error {
			return inBlock(c, fmt.Sprintf("SELECT set_config('wirefence.token', 'orders=%d', true)", token), insert(token, ""))
		},
	}
	if setting {
		ways = append(ways, func(c *stack.Client, token int) error {
			if err := c.Simple(fmt.Sprintf("SET wirefence.token = 'orders=%d'", token)); err != nil {
				return err
			}
			return c.Extended(insert(token, ""))
		})
	}
	var current, accepted, refused atomic.Int64
	current.Store(34)
	ctx, stop := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	for i := range writers {
		c := p.connect(addr)
		late := int64(i % 2) // a zombie is always one token late
		crowd.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				token := int(current.Load() - late)
				switch err := ways[n%len(ways)](c, token); stack.State(err) {
				case "":
					accepted.Add(1)
				case "WF001", "WF006":
					refused.Add(1)
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	for range rounds {
		// Each handoff comes behind some writes under the last token.
		for enough := accepted.Load() + 2*writers; accepted.Load() < enough && !t.Failed(); {
			p.Exec(t, "SELECT pg_sleep(0.002)")
		}
		next := current.Load() + 1
		p.Exec(t, fmt.Sprintf("SELECT wirefence.seal('orders', %d, 'next')", next))
		p.Exec(t, fmt.Sprintf("CREATE TABLE handoff_%d AS SELECT %d AS token, last_value AS id FROM jobs_id_seq", next, next))
		if n := p.number(fmt.Sprintf("SELECT count(*) FROM jobs j, handoff_%d h WHERE j.id > h.id AND j.token < h.token", next)); n > 0 {
			t.Errorf("%d rows with an older token than %d", n, next)
		}
		current.Store(next)
	}
	stop()
	crowd.Wait()
	for token := 35; token <= 34+rounds; token++ {
		if n := p.number(fmt.Sprintf("SELECT count(*) FROM jobs j, handoff_%d h WHERE j.id > h.id AND j.token < h.token", token)); n > 0 {
			t.Errorf("%d stale rows behind the handoff to %d", n, token)
		}
	}
	if refused.Load() < rounds {
		t.Errorf("only %d writes were refused", refused.Load())
	}
	t.Logf("%d writes accepted, %d refused", accepted.Load(), refused.Load())
}

// inBlock runs statements in a transaction block.
func inBlock(c *stack.Client, statements ...string) error {
	if err := c.Simple("BEGIN"); err != nil {
		return err
	}
	for _, sql := range statements {
		if err := c.Simple(sql); err != nil {
			return firstOf(err, c.Simple("ROLLBACK"))
		}
	}
	return c.Simple("COMMIT")
}

func firstOf(err, second error) error {
	if second != nil {
		return fmt.Errorf("%w, and behind %w", second, err)
	}
	return err
}

func TestCancelsGoThroughBoth(t *testing.T) {
	for name, chain := range chains {
		t.Run(name, func(t *testing.T) {
			p, addr := chain(t, two)
			c, bystander := p.connect(addr), p.connect(addr)
			over := make(chan error, 1)
			go func() { over <- c.Simple("SELECT pg_sleep(600) /*wirefence.token='orders=34'*/") }()
			for p.number("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND state = 'active' AND pid <> pg_backend_pid()") == 0 {
				p.Exec(t, "SELECT pg_sleep(0.005)")
			}
			c.Cancel()
			stack.WantState(t, <-over, "57014", "the cancelled query")
			c.Must(insert(34, comment(34)))
			bystander.Must(insert(34, comment(34)))
			p.wantRows(34, 2)
		})
	}
}

// TestAnExhaustedPoolTellsTheClientThatWaits: PgBouncer ends a client that waits
// too long for a server connection; the others go on.
func TestAnExhaustedPoolTellsTheClientThatWaits(t *testing.T) {
	cfg := servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 2, Settings: map[string]string{"query_wait_timeout": "1"}}
	for name, chain := range chains {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, addr := chain(t, cfg)
			waiting, first, second := p.connect(addr), p.connect(addr), p.connect(addr)
			first.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=34'", insert(34, ""))
			second.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=34'", insert(34, ""))
			began := time.Now()
			if got := stack.State(waiting.Simple(insert(33, comment(33)))); got != "08P01" {
				t.Errorf("the client that waits got %q", got)
			}
			if d := time.Since(began); d > stack.Patience/2 {
				t.Errorf("it was told after %s", d)
			}
			first.Must("COMMIT")
			second.Must("COMMIT")
			p.connect(addr).Fails(insert(33, comment(33)), "WF001")
			p.wantRows(34, 2)
			p.wantRows(33, 0)
		})
	}
}

// chains are both orders of pooler and proxy.
var chains = map[string]func(*testing.T, servers.PgBouncerConfig) (*place, string){
	"behind": func(t *testing.T, cfg servers.PgBouncerConfig) (*place, string) {
		t.Helper()
		return behind(t, cfg, "", proxy.Options{})
	},
	"before": func(t *testing.T, cfg servers.PgBouncerConfig) (*place, string) {
		t.Helper()
		return before(t, cfg, proxy.Options{})
	},
}
