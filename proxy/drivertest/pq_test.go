package drivertest

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
)

// pqProgram is what users of database/sql do with lib/pq.
type pqProgram struct {
	ctx     context.Context
	w       way
	db      *sql.DB // the way's, of one connection
	other   *sql.DB // without a fence
	comment string
	lines   []string
}

func startPq(*testing.T, []string) runner {
	return func(t *testing.T, w way) []string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), perRun)
		defer cancel()
		p := &pqProgram{ctx: ctx, w: w, comment: w.comment()}
		p.db = openPq(t, w)
		defer p.db.Close()
		unfenced := w
		unfenced.carrier = none
		p.other = openPq(t, unfenced)
		defer p.other.Close()
		p.statements()
		p.transactions()
		p.copies()
		p.errors(t)
		p.notifications(t)
		p.report(writes, "reset", func() (any, error) {
			_, err := p.db.ExecContext(ctx, "DISCARD ALL")
			if err != nil {
				return nil, err
			}
			if _, err := p.db.ExecContext(ctx, w.set()); err != nil {
				return nil, err
			}
			return p.exec("INSERT INTO t VALUES (80, 'behind the reset')")()
		})
		p.report(reads, "alive", p.one("SELECT 'alive'"))
		return p.lines
	}
}

// settingConnector runs a statement on each new connection.
type settingConnector struct {
	*pq.Connector
	set string
}

func (c settingConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	_, err = conn.(sqldriver.ExecerContext).ExecContext(ctx, c.set, nil)
	return conn, err
}

func openPq(t *testing.T, w way) *sql.DB {
	t.Helper()
	dsn := w.dsn(false)
	if o := w.options(); o != "" {
		dsn += "&options=" + strings.ReplaceAll(strings.ReplaceAll(o, " ", "%20"), "=", "%3D")
	}
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(settingConnector{connector, w.set()})
	db.SetMaxOpenConns(1)
	return db
}

func (p *pqProgram) report(kind, name string, act func() (any, error)) {
	result, err := act()
	if err != nil {
		result = pqError(err)
	}
	p.lines = append(p.lines, fmt.Sprintf("%s %s: %v", kind, name, result))
}

func pqError(err error) string {
	var refused *pq.Error
	if !errors.As(err, &refused) {
		return "error " + err.Error()
	}
	return strings.TrimSuffix(fmt.Sprintf("error %s at %s", refused.Code, refused.Position), " at ")
}

func (p *pqProgram) exec(text string, args ...any) func() (any, error) {
	return func() (any, error) {
		result, err := p.db.ExecContext(p.ctx, text+p.comment, args...)
		if err != nil {
			return nil, err
		}
		return result.RowsAffected()
	}
}

func (p *pqProgram) one(text string, args ...any) func() (any, error) {
	return func() (value any, err error) {
		err = p.db.QueryRowContext(p.ctx, text+p.comment, args...).Scan(&value)
		return value, err
	}
}

func (p *pqProgram) statements() {
	p.report(reads, "select", p.one("SELECT 1 + $1::int", 1))
	p.report(writes, "insert", p.exec("INSERT INTO t VALUES ($1, $2)", 1, "Ünicöde"))
	p.report(writes, "simple insert", p.exec("INSERT INTO t VALUES (2, 'b')"))
	p.report(writes, "returning", p.one("INSERT INTO t VALUES ($1, 'c') RETURNING id", 3))
	p.report(writes, "function", p.one("SELECT write_one($1)", 4))
	p.report(writes, "several", p.exec("INSERT INTO t VALUES (5, 'd'); INSERT INTO t VALUES (6, 'e')"))
	p.report(writes, "prepared", func() (any, error) {
		prepared, err := p.db.PrepareContext(p.ctx, "INSERT INTO t VALUES ($1, $2)"+p.comment)
		if err != nil {
			return nil, err
		}
		defer prepared.Close()
		for i := range 8 {
			if _, err := prepared.ExecContext(p.ctx, 10+i, "p"); err != nil {
				return nil, err
			}
		}
		return "done", nil
	})
	p.report(writes, "call", p.exec("CALL commit_one($1)", 90000))
	p.report(writes, "vacuum", p.exec("VACUUM t"))
	p.report(writes, "concurrent index", p.exec("CREATE INDEX CONCURRENTLY ON t(id)"))
	p.report(writes, "large", p.one("INSERT INTO t VALUES (30, $1) RETURNING length(v)", strings.Repeat("x", 1_000_000)))
	p.report(reads, "rows", func() (n any, err error) {
		rows, err := p.db.QueryContext(p.ctx, "SELECT i FROM generate_series(1, $1::int) i"+p.comment, 3000)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		sum := 0
		for rows.Next() {
			var i int
			if err := rows.Scan(&i); err != nil {
				return nil, err
			}
			sum += i
		}
		return sum, rows.Err()
	})
}

// transaction runs a body and commits it.
func (p *pqProgram) transaction(o *sql.TxOptions, body func(tx *sql.Tx) (any, error)) func() (any, error) {
	return func() (any, error) {
		tx, err := p.db.BeginTx(p.ctx, o)
		if err != nil {
			return nil, err
		}
		result, err := body(tx)
		if err != nil {
			return nil, errors.Join(err, tx.Rollback())
		}
		return result, tx.Commit()
	}
}

func (p *pqProgram) transactions() {
	p.report(writes, "transaction", p.transaction(nil, func(tx *sql.Tx) (value any, err error) {
		for _, text := range []string{"INSERT INTO t VALUES (40, 'tx')", "SAVEPOINT s", "DELETE FROM t", "ROLLBACK TO SAVEPOINT s", "INSERT INTO t VALUES (41, 'ty')"} {
			if _, err := tx.ExecContext(p.ctx, text+p.comment); err != nil {
				return nil, err
			}
		}
		err = tx.QueryRowContext(p.ctx, "UPDATE t SET v = $1 WHERE id = 40 RETURNING v"+p.comment, "tz").Scan(&value)
		return value, err
	}))
	p.report(writes, "serializable", p.transaction(&sql.TxOptions{Isolation: sql.LevelSerializable}, func(tx *sql.Tx) (any, error) {
		_, err := tx.ExecContext(p.ctx, "INSERT INTO t VALUES (42, 's')"+p.comment)
		return "done", err
	}))
	p.report(reads, "read only", p.transaction(&sql.TxOptions{ReadOnly: true}, func(tx *sql.Tx) (n any, err error) {
		err = tx.QueryRowContext(p.ctx, "SELECT count(*) >= 0 FROM t"+p.comment).Scan(&n)
		return n, err
	}))
	p.report(reads, "cursor", p.transaction(nil, func(tx *sql.Tx) (last any, err error) {
		if _, err := tx.ExecContext(p.ctx, "DECLARE c CURSOR FOR SELECT generate_series(1, 100)"); err != nil {
			return nil, err
		}
		for range 3 {
			if err := tx.QueryRowContext(p.ctx, "FETCH 1 FROM c"+p.comment).Scan(&last); err != nil {
				return nil, err
			}
		}
		return last, nil
	}))
}

// copied sends rows by a COPY.
func (p *pqProgram) copied(text string, n int, id any) func() (any, error) {
	return p.transaction(nil, func(tx *sql.Tx) (any, error) {
		rows, err := tx.PrepareContext(p.ctx, text)
		if err != nil {
			return nil, err
		}
		for i := range n {
			if number, ok := id.(int); ok {
				_, err = rows.ExecContext(p.ctx, number+i, "copied")
			} else {
				_, err = rows.ExecContext(p.ctx, id, "copied")
			}
			if err != nil {
				return nil, errors.Join(err, rows.Close())
			}
		}
		_, err = rows.ExecContext(p.ctx)
		return "done", errors.Join(err, rows.Close())
	})
}

func (p *pqProgram) copies() {
	//lint:ignore SA1019 it is what applications use
	p.report(unmarked, "copy in", p.copied(pq.CopyIn("u", "id", "v"), 3000, 1))
	p.report(writes, "copy in by text", p.copied("COPY t (id, v) FROM STDIN"+p.comment, 3000, 1000))
	p.report(fails, "copy fails", p.copied("COPY t (id, v) FROM STDIN"+p.comment, 10, "no number"))
}

func (p *pqProgram) errors(t *testing.T) {
	p.report(fails, "syntax error", p.one("SELECT 1 SELEC 2"))
	p.report(fails, "position", p.exec("INSERT INTO t VALUES (9, nöpe)"))
	p.report(fails, "position, extended", p.exec("INSERT INTO t VALUES ($1, nöpe)", 9))
	p.report(fails, "duplicate", p.exec("INSERT INTO t VALUES ($1, 'again'), ($1, 'again')", 1))
	p.report(reads, "division", p.one("SELECT 1 / $1::int", 0))
	p.report(reads, "cancel", func() (any, error) {
		ctx, cancel := context.WithCancel(p.ctx)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := p.db.ExecContext(ctx, "SELECT pg_sleep(60)"+p.comment)
			ended <- err
		}()
		if !p.w.stale() { // else it is refused at once
			p.w.asleep(t)
			cancel()
		}
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) && pqError(err) != "error 57014" {
			return nil, err
		}
		return "cancelled", nil
	})
	p.report(reads, "alive", p.one("SELECT 'alive'"))
}

func (p *pqProgram) notifications(t *testing.T) {
	p.report(writes, "own notify", p.exec("SELECT pg_notify('own', 'x')"))
	p.report(stands, "listener", func() (any, error) { // on a connection of its own
		listener := pq.NewListener(p.w.dsn(false), time.Second, time.Second, nil)
		defer listener.Close()
		if err := listener.Listen("news"); err != nil {
			return nil, err
		}
		if _, err := p.other.ExecContext(p.ctx, "NOTIFY news, 'hello'"); err != nil {
			return nil, err
		}
		select {
		case heard := <-listener.Notify:
			return heard.Channel + " " + heard.Extra, nil
		case <-p.ctx.Done():
			t.Error("no notification came")
			return nil, p.ctx.Err()
		}
	})
}
