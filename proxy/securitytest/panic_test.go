package securitytest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A panic in the core ends one session, with TLS or without: its client is let go, others
// are served, timeouts and a drain work.
func TestPanicInASession(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	db := stack.Database(t, w.Postgres)
	stack.Exec(t, w.URL(db), "SELECT wirefence.seal('orders', 34, 'B')", "CREATE TABLE t (a int)")
	for _, mode := range []string{"disable", "require"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var log stack.Log
			r, err := stack.Start(proxy.Options{
				Upstream: w.upstream("sslmode=disable"), TLS: w.certificate(t), DrainTimeout: time.Second, IdleTimeout: time.Second,
				Logger: slog.New(panicking{log.Logger().Handler(), "refused"}),
			})
			if err != nil {
				t.Fatal(err)
			}
			over := make(chan error, 1)
			t.Cleanup(func() {
				r.Drain()
				go func() { over <- r.Wait() }()
				select {
				case err := <-over:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(stack.Patience):
					t.Error("the drain does not end")
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
			defer cancel()
			params := "user=postgres dbname=" + db + " sslmode=" + mode
			failing, err := connect(t, r.Addr, params)
			if err != nil {
				t.Fatal(err)
			}
			_, err = failing.Exec(ctx, "INSERT INTO t VALUES (1) /*wirefence.token='orders=33'*/").ReadAll()
			if err == nil || ctx.Err() != nil {
				t.Fatalf("the client that meets the panic gets %v, %v", err, ctx.Err())
			}
			wants(t, "the log", log.String(), "a session failed")
			other, err := connect(t, r.Addr, params)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.Exec(ctx, "INSERT INTO t VALUES (2)").ReadAll(); err != nil {
				t.Errorf("another client: %v", err)
			}
			// It is idle now, and the sweeper ends it.
			for err = nil; err == nil; {
				_, err = other.ReceiveMessage(ctx)
			}
			if refused := (*pgconn.PgError)(nil); !errors.As(err, &refused) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("an idle client gets %v", err)
			}
		})
	}
}
