package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
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

// startPgx runs in this process what programs in other languages do in theirs.
func startPgx(*testing.T, []string) runner {
	return func(t *testing.T, w way) (lines []string) {
		t.Helper()
		for _, mode := range execModes {
			w.rig.exec(t, "TRUNCATE t, u")
			for _, line := range pgxLines(t, w, mode) {
				kind, rest, _ := strings.Cut(line, " ")
				lines = append(lines, fmt.Sprintf("%s %s / %s", kind, mode, rest))
			}
			if w.stale() && w.rig.rows(t, "t") != 0 {
				t.Errorf("%s, %s: rows were written", w.name, mode)
			}
		}
		return lines
	}
}

// pgxConfig is the way's connection.
func pgxConfig(t *testing.T, w way) *pgxpool.Config {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(w.dsn(true))
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["options"] = w.options()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, w.set())
		return err
	}
	return cfg
}

func pgxLines(t *testing.T, w way, mode pgx.QueryExecMode) (lines []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), perRun)
	defer cancel()
	cfg := pgxConfig(t, w)
	cfg.ConnConfig.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := cfg.AfterConnect(ctx, conn); err != nil {
		t.Fatal(err)
	}
	comment := w.comment()
	report := func(kind, name string, act func() (any, error)) {
		result, err := act()
		if err != nil {
			result = errorText(err)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %v", kind, name, result))
	}
	one := func(sql string, args ...any) func() (any, error) {
		return func() (value any, err error) {
			err = conn.QueryRow(ctx, sql+comment, args...).Scan(&value)
			return value, err
		}
	}
	exec := func(sql string, args ...any) func() (any, error) {
		return func() (any, error) { return conn.Exec(ctx, sql+comment, args...) }
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
			if _, err := tx.Exec(ctx, "INSERT INTO t VALUES ($1, 'tx')"+comment, 20); err != nil {
				return err
			}
			inner := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint
				if _, err := tx.Exec(ctx, "DELETE FROM t"+comment); err != nil {
					return err
				}
				return errors.New("roll back")
			})
			if inner == nil || inner.Error() != "roll back" {
				return inner
			}
			return tx.QueryRow(ctx, "UPDATE t SET v = 'ty' WHERE id = 20 RETURNING v"+comment).Scan(&value)
		})
		return value, err
	})
	report("W", "serializable", func() (any, error) {
		return "done", pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO t VALUES (21, 's')"+comment)
			return err
		})
	})
	report("R", "read only", func() (n any, err error) {
		err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, "SELECT count(*) >= 0 FROM t"+comment).Scan(&n)
		})
		return n, err
	})
	report("W", "prepared", func() (any, error) {
		if _, err := conn.Prepare(ctx, "p", "INSERT INTO t VALUES ($1, 'p')"+comment); err != nil {
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
			batch.Queue("INSERT INTO t VALUES ($1, $2)"+comment, 100+i, "batch")
			batch.Queue("SELECT $1::int"+comment, i)
		}
		return "done", conn.SendBatch(ctx, batch).Close()
	})
	report("W", "batch with an error", func() (any, error) {
		batch := &pgx.Batch{}
		batch.Queue("INSERT INTO t VALUES ($1, 'x')"+comment, 300)
		batch.Queue("SELECT 1 / $1::int"+comment, 0)
		batch.Queue("INSERT INTO t VALUES ($1, 'x')"+comment, 301)
		err := conn.SendBatch(ctx, batch).Close()
		if errorText(err) == "error 22012" {
			return "as it must", nil
		}
		return nil, err
	})
	report("W", "pipeline", func() (any, error) {
		pipeline := conn.PgConn().StartPipeline(ctx)
		for i := range 3 {
			pipeline.SendQueryParams("INSERT INTO t VALUES ($1, 'pipe')"+comment, [][]byte{fmt.Append(nil, 400+i)}, nil, nil, nil)
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
	report("W", "copy in by text", func() (any, error) {
		return conn.PgConn().CopyFrom(ctx, strings.NewReader("900\ty\n"), "COPY t FROM STDIN"+comment)
	})
	report("V", "copy in", func() (any, error) {
		return conn.CopyFrom(ctx, pgx.Identifier{"u"}, []string{"id", "v"}, pgx.CopyFromSlice(3000, func(i int) ([]any, error) {
			return []any{1000 + i, "copied"}, nil
		}))
	})
	report("E", "copy fails", func() (any, error) {
		return conn.PgConn().CopyFrom(ctx, strings.NewReader("no number\tx\n"+strings.Repeat("1\ty\n", 50000)), "COPY t FROM STDIN"+comment)
	})
	report("R", "copy out", func() (any, error) {
		var out strings.Builder
		_, err := conn.PgConn().CopyTo(ctx, &out, "COPY (SELECT generate_series(1, 3000)) TO STDOUT"+comment)
		return out.Len(), err
	})
	report("W", "call", exec("CALL commit_one($1)", 90000))
	report("W", "vacuum", exec("VACUUM t"))
	report("W", "concurrent index", exec("CREATE INDEX CONCURRENTLY ON t(id)"))
	report("W", "large", one("INSERT INTO t VALUES (40, $1) RETURNING length(v)", strings.Repeat("x", 1_000_000)))
	report("V", "large object", func() (text any, err error) {
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
	report("E", "syntax error", one("SELECT 1 SELEC 2"))
	report("E", "position", exec("INSERT INTO t VALUES (9, nöpe)"))
	report("E", "duplicate", exec("INSERT INTO t VALUES (10, 'again')"))
	report("R", "division", one("SELECT 1 / $1::int", 0))
	report("R", "cancel", func() (any, error) {
		ended := make(chan error, 1)
		go func() {
			_, err := conn.PgConn().Exec(ctx, "SELECT pg_sleep(60)"+comment).ReadAll()
			ended <- err
		}()
		if w.stale() { // it is refused at once
			return nil, <-ended
		}
		w.asleep(t)
		if err := conn.PgConn().CancelRequest(ctx); err != nil {
			return nil, err
		}
		return "not cancelled", <-ended
	})
	report("R", "notify", func() (any, error) {
		if _, err := conn.Exec(ctx, "LISTEN news"); err != nil {
			return nil, err
		}
		w.rig.exec(t, "NOTIFY news, 'hello'")
		heard, err := conn.WaitForNotification(ctx)
		if err != nil {
			return nil, err
		}
		return heard.Channel + " " + heard.Payload, nil
	})
	report("W", "own notify", exec("SELECT pg_notify('news', 'own')"))
	report("S", "reset", func() (any, error) {
		if _, err := conn.Exec(ctx, "DISCARD ALL", pgx.QueryExecModeSimpleProtocol); err != nil {
			return nil, err
		}
		return "done", errors.Join(conn.DeallocateAll(ctx), cfg.AfterConnect(ctx, conn))
	})
	report("W", "behind the reset", exec("INSERT INTO t VALUES ($1, 'reset')", 50))
	report("W", "pool", func() (any, error) { return pooled(ctx, cfg, comment) })
	report("R", "alive", one("SELECT 'alive'"))
	return lines
}

// pooled lets twenty writers share four connections.
func pooled(ctx context.Context, cfg *pgxpool.Config, comment string) (any, error) {
	cfg.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	ended := make(chan error, 20)
	for i := range 20 {
		go func() {
			_, err := pool.Exec(ctx, "INSERT INTO t VALUES ($1, 'pool')"+comment, 600+i)
			ended <- err
		}()
	}
	for range 20 {
		err = errors.Join(err, <-ended)
	}
	return "done", err
}
