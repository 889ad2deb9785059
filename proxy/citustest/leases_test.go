package citustest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/postgres"
)

// Lock clients of all nodes share the leases, and a lease that one of them gets fences sessions on
// each node.
func TestLeasesOnAllNodes(t *testing.T) {
	c := cluster(t)
	t.Parallel()
	worlds := onNodes(t, c, time.Second)
	var former *stack.Client
	for i, w := range worlds {
		pool := stack.Started(pgxpool.New(t.Context(), w.node.URL(w.Name))).EndWith(t)
		store := postgres.New(pool)
		client, err := lockclient.New(store, lockclient.Options{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := client.Acquire(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		if former != nil {
			stack.WantState(t, former.Simple("insert into jobs (token) values (0)"), "WF001", i)
		}
		for _, at := range worlds {
			former = at.fenced(t, fmt.Sprintf("orders=%d", lease.Token()))
			former.Must(fmt.Sprintf("insert into jobs (token) values (%d)", lease.Token()))
		}
		if n := worlds[0].rowsOf(t, int64(lease.Token())); n != len(worlds) {
			t.Errorf("%d rows were written", n)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := client.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}
