package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/internal/stack"
)

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// errorText is an error's SQLSTATE and position.
func errorText(err error) string {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return err.Error()
	}
	if refused.Position > 0 {
		return fmt.Sprintf("error %s at %d", refused.Code, refused.Position)
	}
	return "error " + refused.Code
}

// pgxLines does what programs in other languages do, and reports as they do.
func pgxLines(t *testing.T, r *rig, addr, options string, mode pgx.QueryExecMode) (lines []string) {
	t.Helper()
	r.exec(t, "TRUNCATE t")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cfg, err := pgx.ParseConfig(stack.URL(addr, r.db))
	if err != nil {
		t.Fatal(err)
	}
	cfg.DefaultQueryExecMode = mode
	cfg.RuntimeParams["options"] = options
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	report := func(kind, name string, act func() (any, error)) {
		result, err := act()
		if err != nil {
			result = errorText(err)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %v", kind, name, result))
	}
	one := func(sql string, args ...any) func() (any, error) {
		return func() (value any, err error) {
			err = conn.QueryRow(ctx, sql, args...).Scan(&value)
			return value, err
		}
	}
	exec := func(sql string, args ...any) func() (any, error) {
		return func() (any, error) { return conn.Exec(ctx, sql, args...) }
	}
	report("R", "select", one("SELECT 1 + $1::int", 1))
	for i := range 4 {
		report("W", "insert", exec("INSERT INTO t VALUES ($1, $2)", i, "Ünicöde"))
	}
	report("W", "returning", one("INSERT INTO t VALUES (10, 'b') RETURNING v"))
	report("W", "function", one("SELECT write_one($1)", 11))
	report("W", "several", exec("INSERT INTO t VALUES (12, 'c'); INSERT INTO t VALUES (13, 'd')", pgx.QueryExecModeSimpleProtocol))
	report("W", "transaction", func() (value any, err error) {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO t VALUES ($1, 'tx')", 20); err != nil {
				return err
			}
			inner := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint
				if _, err := tx.Exec(ctx, "DELETE FROM t"); err != nil {
					return err
				}
				return errors.New("roll back")
			})
			if inner == nil || inner.Error() != "roll back" {
				return inner
			}
			return tx.QueryRow(ctx, "UPDATE t SET v = 'ty' WHERE id = 20 RETURNING v").Scan(&value)
		})
		return value, err
	})
	report("W", "serializable", func() (any, error) {
		return "done", pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO t VALUES (21, 's')")
			return err
		})
	})
	report("R", "read only", func() (n any, err error) {
		err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, "SELECT count(*) >= 0 FROM t").Scan(&n)
		})
		return n, err
	})
	report("W", "prepared", func() (any, error) {
		if _, err := conn.Prepare(ctx, "p", "INSERT INTO t VALUES ($1, 'p')"); err != nil {
			return nil, err
		}
		for i := range 5 {
			if _, err := conn.Exec(ctx, "p", 30+i); err != nil {
				return nil, err
			}
		}
		return "done", conn.Deallocate(ctx, "p")
	})
	report("W", "batch", func() (any, error) {
		batch := &pgx.Batch{}
		for i := range 100 {
			batch.Queue("INSERT INTO t VALUES ($1, $2)", 100+i, "batch")
			batch.Queue("SELECT $1::int", i)
		}
		return "done", conn.SendBatch(ctx, batch).Close()
	})
	report("W", "batch with an error", func() (any, error) {
		batch := &pgx.Batch{}
		batch.Queue("INSERT INTO t VALUES ($1, 'x')", 300)
		batch.Queue("SELECT 1 / $1::int", 0)
		batch.Queue("INSERT INTO t VALUES ($1, 'x')", 301)
		err := conn.SendBatch(ctx, batch).Close()
		if errorText(err) == "error 22012" {
			return "as it must", nil
		}
		return nil, err
	})
	report("W", "pipeline", func() (any, error) {
		pipeline := conn.PgConn().StartPipeline(ctx)
		for i := range 3 {
			pipeline.SendQueryParams("INSERT INTO t VALUES ($1, 'pipe')", [][]byte{fmt.Append(nil, 400+i)}, nil, nil, nil)
			if err := pipeline.Sync(); err != nil {
				return nil, err
			}
		}
		var first error
		for range 6 {
			result, err := pipeline.GetResults()
			if reader, ok := result.(*pgconn.ResultReader); ok && err == nil {
				_, err = reader.Close()
			}
			if first == nil {
				first = err
			}
		}
		return "done", errors.Join(first, pipeline.Close())
	})
	report("W", "copy in", func() (any, error) {
		return conn.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"id", "v"}, pgx.CopyFromSlice(3000, func(i int) ([]any, error) {
			return []any{1000 + i, "copied"}, nil
		}))
	})
	report("E", "copy fails", func() (any, error) {
		return conn.PgConn().CopyFrom(ctx, strings.NewReader("no number\tx\n"+strings.Repeat("1\ty\n", 50000)), "COPY t FROM STDIN")
	})
	report("R", "copy out", func() (any, error) {
		var out strings.Builder
		_, err := conn.PgConn().CopyTo(ctx, &out, "COPY (SELECT generate_series(1, 3000)) TO STDOUT")
		return out.Len(), err
	})
	report("W", "large", one("INSERT INTO t VALUES (40, $1) RETURNING length(v)", strings.Repeat("x", 1_000_000)))
	report("W", "large object", func() (text any, err error) {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			all := tx.LargeObjects()
			oid, err := all.Create(ctx, 0)
			if err != nil {
				return err
			}
			o, err := all.Open(ctx, oid, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
			if err != nil {
				return err
			}
			if _, err := o.Write([]byte("hello")); err != nil {
				return err
			}
			return all.Unlink(ctx, oid)
		})
		return "done", err
	})
	report("R", "syntax error", one("SELECT 1 SELEC 2"))
	report("E", "position", exec("INSERT INTO t VALUES (9, nöpe)"))
	report("E", "duplicate", exec("INSERT INTO t VALUES (10, 'again')"))
	report("R", "division", one("SELECT 1 / $1::int", 0))
	report("R", "cancel", func() (any, error) {
		ended := make(chan error, 1)
		go func() {
			_, err := conn.PgConn().Exec(ctx, "SELECT pg_sleep(60)").ReadAll()
			ended <- err
		}()
		r.asleep(t)
		if err := conn.PgConn().CancelRequest(ctx); err != nil {
			return nil, err
		}
		return "not cancelled", <-ended
	})
	report("R", "alive", one("SELECT 'alive'"))
	report("R", "notify", func() (any, error) {
		if _, err := conn.Exec(ctx, "LISTEN news"); err != nil {
			return nil, err
		}
		r.exec(t, "NOTIFY news, 'hello'")
		heard, err := conn.WaitForNotification(ctx)
		if err != nil {
			return nil, err
		}
		return heard.Channel + " " + heard.Payload, nil
	})
	report("W", "own notify", exec("SELECT pg_notify('news', 'own')"))
	return lines
}

func TestPgx(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		for _, mode := range execModes {
			want := strings.Join(pgxLines(t, r, r.Addr(), "", mode), "\n")
			for name, options := range map[string]string{"unfenced": "", "current": current} {
				if got := strings.Join(pgxLines(t, r, r.proxy, options, mode), "\n"); got != want {
					t.Errorf("%s, %s\n got: %s\nwant: %s", mode, name, got, want)
				}
			}
			for _, line := range pgxLines(t, r, r.proxy, stale, mode) {
				if refused := strings.HasSuffix(line, "error WF001"); strings.HasPrefix(line, "W") != refused && line[0] != 'E' {
					t.Errorf("%s, stale: %s", mode, line)
				}
			}
			if n := r.rows(t); n != 0 {
				t.Errorf("%s, stale: %d rows", mode, n)
			}
		}
	})
}

// A pool of pgx's, whose connections are reset and reused.
func TestPgxPool(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		pool, err := pgxpool.New(t.Context(), stack.URL(r.proxy, r.db)+"&pool_max_conns=4")
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		failed := make(chan error, 40)
		for i := range 40 {
			go func() {
				token := 33 + i%2
				_, err := pool.Exec(t.Context(), fmt.Sprintf("INSERT INTO t VALUES ($1, 'pool') /*wirefence.token='orders=%d'*/", token), i)
				if stale := token == 33; stale != (err != nil && errorText(err) == "error WF001") || !stale && err != nil {
					failed <- fmt.Errorf("token %d: %w", token, err)
					return
				}
				failed <- nil
			}()
		}
		for range 40 {
			if err := <-failed; err != nil {
				t.Error(err)
			}
		}
		if n := r.rows(t); n != 20 {
			t.Errorf("%d rows", n)
		}
	})
}
