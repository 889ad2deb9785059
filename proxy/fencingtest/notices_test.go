package fencingtest

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/stack"
)

// A client that asks for all log messages gets none about the proxy's own queries.
func TestTheProxysMessagesAreNotHeard(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		cfg, err := pgx.ParseConfig(stack.URL(w.proxy, w.Name))
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var heard []string
		cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, n.Message)
		}
		c, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.Background()) }()
		stack.MustExec(t, c, "set log_statement = 'all'")
		stack.MustExec(t, c, "set log_min_duration_statement = 0")
		stack.MustExec(t, c, "set client_min_messages = log")
		stack.MustExec(t, c, "select set_config('wirefence.token', 'orders=34', false)")
		for range 3 { // the first prepares the check
			if _, err := c.Exec(t.Context(), "insert into jobs values ($1)", 34); err != nil {
				t.Fatal(err)
			}
			stack.MustExec(t, c, "do $$ begin raise notice 'heard'; end $$")
		}
		mu.Lock()
		defer mu.Unlock()
		own := 0
		for _, message := range heard {
			if strings.Contains(message, "_wirefence") || strings.Contains(message, "pg_catalog.current_setting('wirefence.token'") {
				t.Errorf("the client hears %q", message)
			}
			if message == "heard" {
				own++
			}
		}
		if own != 3 {
			t.Errorf("the client hears its own notices %d times of %q", own, heard)
		}
	})
}
