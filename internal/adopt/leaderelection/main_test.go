package leaderelection

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/apiserver"
	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

var suite = stack.Suite{}

func TestMain(m *testing.M) { os.Exit(suite.Run(m)) }

// Identities of the application on host web-1 and of another, as client-go's users make them.
const (
	own   = "web-1_0d9f3c52-6a0e-4c5a-9a8f-3f0a2b6c7d11"
	later = "web-1_5b1e77aa-1df0-4b8e-8f3c-90f1f6f2a001"
	other = "web-2_77aa0b52-9c5d-4b39-a5ab-21c9d7ee0002"
)

// world is a sidecar that follows the Lease shop/orders.
type world struct {
	*apiservertest.Server
	db   *stack.DB
	book *adopt.Book
	log  *stack.Log
}

// start starts the sidecar of web-1, and waits until it has seen the Lease.
func start(t *testing.T, s *apiservertest.Server, db *stack.DB, changes ...func(*Options)) *world {
	t.Helper()
	w := &world{Server: s, db: db, book: &adopt.Book{}, log: &stack.Log{}}
	f := follow(t, w, changes...)
	stack.Eventually(t, "the Lease is read", func() bool { return f.Ready() == nil })
	return w
}

// prepare makes a follower that doesn't run yet.
func prepare(t *testing.T, w *world, changes ...func(*Options)) *Follower {
	t.Helper()
	client, err := apiserver.New(apiserver.Options{Server: w.URL, CAFile: w.CAFile, TokenFile: w.TokenFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	pool, err := pgxpool.New(t.Context(), w.db.URL(w.db.Name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	locks, err := adopt.ParseFrom("kubernetes:shop/orders=orders")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Client: client, Locks: locks, Owner: "web-1", Book: w.book, Retry: 20 * time.Millisecond, Compare: 50 * time.Millisecond,
		Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: pool, Source: Source}},
		Logger:  slog.New(slog.NewTextHandler(w.log, nil)),
	}
	for _, change := range changes {
		change(&o)
	}
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func follow(t *testing.T, w *world, changes ...func(*Options)) *Follower {
	t.Helper()
	f := prepare(t, w, changes...)
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(ctx)
	}()
	t.Cleanup(func() {
		end()
		<-ended
		if t.Failed() {
			t.Logf("log:\n%s\nbook: %+v", w.log, w.book.Leases())
		}
	})
	return f
}

// lease is the sidecar's last one.
func (w *world) lease() adopt.Lease {
	for _, l := range w.book.Leases() {
		return l
	}
	return adopt.Lease{}
}

// holds waits until the sidecar holds a lease with a token that is sealed.
func (w *world) holds(t *testing.T, token int64) {
	t.Helper()
	stack.Eventually(t, "the lease", func() bool { return w.book.Holds("orders", fence.Token(token)) })
	w.db.Becomes(t, "true", "SELECT (last_token = $1)::text FROM wirefence.resource_locks WHERE resource_id = 'orders'", token)
}

// ended waits until no lease is held, for a reason.
func (w *world) ended(t *testing.T, reason string) {
	t.Helper()
	stack.Eventually(t, "an end: "+reason, func() bool { return w.book.Fence() == "" && w.lease().Ended == reason })
}
