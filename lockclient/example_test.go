package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// The examples connect where these say.
var redisURL, databaseURL string

// exampleServers starts the servers of the examples, and returns the function that ends
// them.
func exampleServers() func() {
	ctx := context.Background()
	server, err := servers.StartRedis(ctx)
	check(err)
	redisURL = server.URL()
	pg, err := suite.Start(0)
	check(err)
	name, err := stack.CreateDatabase(ctx, pg, "")
	check(err)
	databaseURL = pg.URL(name)
	return server.Close
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Only one of several processes may write the report: the seal ensures that a former
// holder cannot, even if it believes that it holds the lease.
func Example() {
	defer exampleServers()()
	ctx := context.Background()

	store, err := redis.Open(redisURL)
	check(err)
	defer store.Close()
	issuer, err := pgxpool.New(ctx, databaseURL) // a pool: leases are sealed at any time
	check(err)
	defer issuer.Close()
	client, err := lockclient.New(store, lockclient.Options{
		Holder:  "report-writer",
		Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: issuer}},
	})
	check(err)
	defer client.Close(ctx)

	lease, err := client.Acquire(ctx, "report:acme:17")
	check(err)
	defer lease.Release(ctx)

	db, err := pgx.Connect(ctx, databaseURL)
	check(err)
	defer db.Close(ctx)
	// The lease's context ends the work when the lease ends.
	err = pgx.BeginFunc(lease.Context(), db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(lease.Context(), lease.Fence().Transaction()); err != nil {
			return err
		}
		// Behind a Wirefence proxy, or on a guarded table, this comes by itself.
		_, err := tx.Exec(lease.Context(), lease.Fence().Check())
		return err
	})
	fmt.Println(lease.Fence(), err)
	// Output: report:acme:17=1 <nil>
}

func ExampleClient_TryAcquire() {
	ctx := context.Background()
	store := newMemory()
	first, err := lockclient.New(store, lockclient.Options{Unsealed: true})
	check(err)
	defer first.Close(ctx)
	second, err := lockclient.New(store, lockclient.Options{Unsealed: true})
	check(err)
	defer second.Close(ctx)

	lease, err := first.TryAcquire(ctx, "orders")
	fmt.Println(lease.Token(), err)

	_, err = second.TryAcquire(ctx, "orders")
	var held *lockclient.HeldError
	if errors.As(err, &held) {
		fmt.Println("not acquired:", errors.Is(err, lockclient.ErrNotAcquired), held.Holder == lease.Holder())
	}

	check(lease.Release(ctx))
	lease, err = second.TryAcquire(ctx, "orders")
	fmt.Println(lease.Token(), err)
	// Output:
	// 1 <nil>
	// not acquired: true true
	// 2 <nil>
}

func ExampleLease_Context() {
	ctx := context.Background()
	store := newMemory()
	client, err := lockclient.New(store, lockclient.Options{Unsealed: true, TTL: 100 * time.Millisecond})
	check(err)
	defer client.Close(ctx)
	lease, err := client.Acquire(ctx, "orders")
	check(err)

	store.forget() // as a Redis that was restarted does
	<-lease.Context().Done()
	fmt.Println(context.Cause(lease.Context()))
	// Output: lease lost: "orders", token 1
}

// A payment whose intent was recorded before. Its key makes a repetition harmless; the
// check keeps a former holder from beginning one.
func ExampleLease_Guard() {
	defer exampleServers()()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL)
	check(err)
	defer pool.Close()
	store, err := redis.Open(redisURL)
	check(err)
	defer store.Close()
	client, err := lockclient.New(store, lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: pool}}})
	check(err)
	defer client.Close(ctx)
	lease, err := client.Acquire(ctx, "payments")
	check(err)

	pay := func(ctx context.Context) error {
		// An HTTP request with ctx, the header Idempotency-Key and the key of the
		// intent would be here.
		fmt.Println("paid invoice-17")
		return nil
	}
	err = lease.Guard(ctx, pool, 3*time.Second, pay)
	fmt.Println("error:", err)

	_, err = fence.Revoke(ctx, pool, "payments")
	check(err)
	err = lease.Guard(ctx, pool, 3*time.Second, pay)
	fmt.Println("not begun:", errors.Is(err, lockclient.ErrNotBegun), "stale:", fence.IsStale(err))
	// Output:
	// paid invoice-17
	// error: <nil>
	// not begun: true stale: true
}
