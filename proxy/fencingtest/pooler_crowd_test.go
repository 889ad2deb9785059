package fencingtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// crowdWriters clients share two server connections, for so many rounds of handoffs.
const (
	crowdWriters = 10
	rounds       = 12
)

// Clients write with each carrier of a fence while the token moves on, in both chains. Half of
// them are always one token late. After a handoff no row with an older token may appear.
func TestManyClientsOverFewConnections(t *testing.T) {
	for _, major := range oldAndNew {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Run("behind", func(t *testing.T) {
				t.Parallel()
				newPooled(t, major).beforePooler(t, two, proxy.Options{}).crowd(t, true)
			})
			t.Run("before", func(t *testing.T) {
				t.Parallel()
				newPooled(t, major).behindPooler(t, two, proxy.Options{}).crowd(t, false)
			})
		})
	}
}

// crowd runs the writers. With setting, some set the variable for their session.
func (w *world) crowd(t *testing.T, setting bool) {
	ways := []func(*client, int) error{
		func(c *client, token int) error { return c.Simple(insertOf(token) + comment(token)) },
		func(c *client, token int) error { return c.Extended(insertOf(token) + comment(token)) },
		func(c *client, token int) error {
			return inBlock(c, setLocal(token), insertOf(token))
		},
		func(c *client, token int) error {
			return inBlock(c, fmt.Sprintf("SELECT set_config('wirefence.token', 'orders=%d', true)", token), insertOf(token))
		},
	}
	if setting {
		ways = append(ways, func(c *client, token int) error {
			if err := c.Simple(fmt.Sprintf("SET wirefence.token = 'orders=%d'", token)); err != nil {
				return err
			}
			return c.Extended(insertOf(token))
		})
	}
	var current, accepted, refused atomic.Int64
	current.Store(34)
	ctx, stop := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	for i := range crowdWriters {
		c := w.connect(t)
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
	older := map[int64]int{} // rows, when a token was sealed
	for range rounds {
		// Each handoff comes behind some writes under the last token.
		for enough := accepted.Load() + 2*crowdWriters; accepted.Load() < enough && !t.Failed(); {
			w.Exec(t, "SELECT pg_sleep(0.002)")
		}
		next := current.Load() + 1
		w.Seal(t, "orders", next)
		older[next] = w.count(t, "SELECT count(*) FROM jobs WHERE token < $1", next)
		current.Store(next)
	}
	stop()
	crowd.Wait()
	for token, rows := range older {
		if n := w.count(t, "SELECT count(*) FROM jobs WHERE token < $1", token); n != rows {
			t.Errorf("%d stale rows behind the handoff to %d", n-rows, token)
		}
	}
	if refused.Load() < rounds {
		t.Errorf("only %d writes were refused", refused.Load())
	}
	t.Logf("%d writes accepted, %d refused", accepted.Load(), refused.Load())
}

// inBlock runs statements in a transaction block.
func inBlock(c *client, statements ...string) error {
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
			w := chain(t, two, proxy.Options{})
			c, bystander := w.connect(t), w.connect(t)
			over := make(chan error, 1)
			go func() { over <- c.Simple("SELECT pg_sleep(600) /*wirefence.token='orders=34'*/") }()
			for w.count(t, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND state = 'active' AND pid <> pg_backend_pid() AND datname = current_database()") == 0 {
				w.Exec(t, "SELECT pg_sleep(0.005)")
			}
			c.Cancel()
			stack.WantState(t, <-over, "57014", "the cancelled query")
			c.Must(insertOf(34) + comment(34))
			bystander.Must(insertOf(34) + comment(34))
			w.wantRowsOf(t, 34, 2)
		})
	}
}

// chains are both orders of pooler and proxy.
var chains = map[string]func(testing.TB, servers.PgBouncerConfig, proxy.Options) *world{"behind": poolerBehind, "before": poolerBefore}
