//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
)

// schema is where clients write, besides Wirefence's own.
const schema = `CREATE TABLE journal (id text PRIMARY KEY, token bigint NOT NULL)`

// fate is what is known of a write when its call has returned.
type fate string

const (
	committed fate = "committed"
	refused   fate = "refused"   // its token was stale
	misjudged fate = "misjudged" // refused for a reason that no client gave
	unknown   fate = "unknown"   // the error leaves open what became of it
)

// writePatience bounds each write. A longer one is as good as a lost connection.
const writePatience = 3 * time.Second

// writer writes fenced rows over a connection of its own, past the proxy. It
// asks nobody whether it still may.
type writer struct {
	*client
	conn *pgx.Conn
}

// connect returns a connection that works, or did so a moment ago.
func (w *writer) connect(ctx context.Context) (*pgx.Conn, error) {
	if w.conn != nil && !w.conn.IsClosed() {
		return w.conn, nil
	}
	conn, err := pgx.Connect(ctx, w.Journal)
	if err == nil {
		w.conn = conn
	}
	return conn, err
}

// older counts the rows that were written with older tokens.
func (w *writer) older(ctx context.Context, token fence.Token) (rows int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, writePatience)
	defer cancel()
	conn, err := w.connect(ctx)
	if err != nil {
		return 0, err
	}
	err = conn.QueryRow(ctx, "SELECT count(*) FROM journal WHERE token < $1", int64(token)).Scan(&rows)
	return rows, err
}

// write writes one row in a transaction with its check, and records what became
// of it.
func (w *writer) write(ctx context.Context, f fence.Fence, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, writePatience)
	defer cancel()
	conn, err := w.connect(ctx)
	if err != nil {
		w.pause(ctx, random, 20*time.Millisecond)
		return
	}
	token := f.Token(resource)
	n := w.nextWrite()
	row := pgx.NamedArgs{"id": fmt.Sprintf("%s.%d", w.Name, n), "token": int64(token)}
	w.tell(record{What: writing, Write: n, Token: token})
	switch random.IntN(4) {
	case 0:
		err = w.atOnce(ctx, conn, f, row)
	case 1:
		err = w.inSteps(ctx, conn, pgx.RepeatableRead, f, row, random)
	default:
		err = w.inSteps(ctx, conn, pgx.ReadCommitted, f, row, random)
	}
	r := record{What: wrote, Write: n, Token: token}
	r.Fate, r.Current = judged(err)
	if err != nil && r.Fate != refused {
		r.Error = err.Error()
	}
	w.tell(r)
}

const insert = "INSERT INTO journal (id, token) VALUES (@id, @token)"

// atOnce sends the whole transaction before it reads an answer.
func (w *writer) atOnce(ctx context.Context, conn *pgx.Conn, f fence.Fence, row pgx.NamedArgs) error {
	batch := &pgx.Batch{} // one implicit transaction
	if w.Defect != unchecked {
		batch.Queue("SELECT wirefence.check($1)", f.String())
	}
	batch.Queue(insert, row)
	return conn.SendBatch(ctx, batch).Close()
}

// inSteps takes its time before the commit.
func (w *writer) inSteps(ctx context.Context, conn *pgx.Conn, level pgx.TxIsoLevel, f fence.Fence, row pgx.NamedArgs, random *rand.Rand) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
		if w.Defect != unchecked {
			if err := fence.Check(ctx, tx, f); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, insert, row); err != nil {
			return err
		}
		w.pause(ctx, random, 10*time.Millisecond)
		return nil
	})
}

func (w *writer) close() {
	if w.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = w.conn.Close(ctx)
	}
}

var currentToken = regexp.MustCompile(`current token (\d+)`)

// judged reads a refusal. The token that it names is what the resource's was at
// some moment during the call.
func judged(err error) (fate, fence.Token) {
	if err == nil {
		return committed, 0
	}
	refusal := (*pgconn.PgError)(nil)
	if !errors.As(err, &refusal) || !fence.IsRefusal(err) {
		return unknown, 0
	}
	named := currentToken.FindStringSubmatch(refusal.Detail)
	if !fence.IsStale(err) || named == nil {
		return misjudged, 0
	}
	current, err := fence.ParseToken(named[1])
	if err != nil {
		return misjudged, 0
	}
	return refused, current
}
