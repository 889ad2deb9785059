package fencingtest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

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
