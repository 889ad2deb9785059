package fencingtest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A proxy behind a transaction pooler cannot see that another client has the session. That
// client writes under the fence that the last one has left.
func TestBeforeTheProxyASettingLeaks(t *testing.T) {
	w := poolerBefore(t, one, proxy.Options{UnfencedWrites: proxy.Reject})
	a, b := w.connect(t), w.connect(t)
	b.Fails(insertOf(0), "WF002")
	a.Must("SET wirefence.token = 'orders=34'")
	b.Must(insertOf(34)) // as if it were a's
	b.Fails(insertOf(33)+comment(33), "WF001")
	w.Exec(t, "SELECT wirefence.seal('orders', 35, 'next')")
	b.Fails(insertOf(33), "WF001")
	w.wantRowsOf(t, 33, 0)
}

// If PgBouncer resets the variable between transactions, a setting reaches no later
// transaction, not even of the same client. Where a fence is required, such a write is refused.
func TestBeforeTheProxyAResetStopsTheLeak(t *testing.T) {
	cfg := servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 1, Settings: map[string]string{
		"server_reset_query": "RESET wirefence.token", "server_reset_query_always": "1",
	}}
	w := poolerBefore(t, cfg, proxy.Options{UnfencedWrites: proxy.Reject})
	a, b := w.connect(t), w.connect(t)
	for range 3 {
		a.Must("SET wirefence.token = 'orders=34'")
		b.Fails(insertOf(0), "WF002")
		a.Fails(insertOf(0), "WF002")
		a.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=34'", insertOf(34), "COMMIT", insertOf(34)+comment(34))
	}
	w.wantRowsOf(t, 0, 0)
	w.wantRowsOf(t, 34, 6)
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
