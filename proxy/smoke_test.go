package proxy_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

func TestSmoke(t *testing.T) {
	pg := stack.Postgres(t, 0)
	db := stack.Database(t, pg)
	addr := stack.Proxy(t, pg, proxy.Options{DrainTimeout: 2 * time.Second})
	stack.Exec(t, pg.URL(db), "create table jobs(id int, worker text)", "select wirefence.seal('orders', 34, 'b')")
	ctx := t.Context()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
		cfg, _ := pgx.ParseConfig(stack.URL(addr, db))
		cfg.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "insert into jobs values ($1, $2)", 1, "plain"); err != nil {
			t.Fatal(mode, err)
		}
		if _, err := conn.Exec(ctx, "insert into jobs values ($1, $2) /*wirefence.token='orders=34'*/", 1, "b"); err != nil {
			t.Fatal(mode, err)
		}
		if _, err := conn.Exec(ctx, "insert into jobs values ($1, $2) /*wirefence.token='orders=33'*/", 1, "a"); !fence.IsStale(err) {
			t.Fatal(mode, err)
		}
		for range 3 {
			if _, err := conn.Exec(ctx, "set wirefence.token = 'orders=34'"); err != nil {
				t.Fatal(mode, err)
			}
			if _, err := conn.Exec(ctx, "insert into jobs values ($1, $2)", 1, "b"); err != nil {
				t.Fatal(mode, err)
			}
			if _, err := conn.Exec(ctx, "set wirefence.token = 'orders=33'"); err != nil {
				t.Fatal(mode, err)
			}
			if _, err := conn.Exec(ctx, "insert into jobs values ($1, $2)", 1, "a"); !fence.IsStale(err) {
				t.Fatal(mode, err)
			}
			var n int
			if err := conn.QueryRow(ctx, "select count(*) from jobs where worker = $1", "a").Scan(&n); err != nil || n != 0 {
				t.Fatal(mode, n, err)
			}
		}
	}
}
