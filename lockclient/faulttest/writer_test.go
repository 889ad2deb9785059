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
	"github.com/wirefence/wirefence/model"
)

// schema is the schema of the clients, besides Wirefence's own.
const schema = `CREATE TABLE journal (id text PRIMARY KEY, token bigint NOT NULL)`

// writeOutcome is the known outcome of a write after its call.
type writeOutcome string

const (
	committed writeOutcome = "committed"
	refused   writeOutcome = "refused"   // its token was stale
	misjudged writeOutcome = "misjudged" // refused for a reason that no client gave
	unknown   writeOutcome = "unknown"   // the error leaves open what became of it
)

// writeTimeout bounds each write. A longer one is as good as a lost connection.
const writeTimeout = 3 * time.Second

// writer writes fenced rows over a connection of its own, through the client's proxy. It
// does not ask whether it still holds the lease.
type writer struct {
	*client
	conn     *pgx.Conn
	variable string // what the session's variable holds
	last     string // the fence of the write before
	comments bool   // it comes in comments
}

// connect returns a connection that works, or worked a moment ago.
func (w *writer) connect(ctx context.Context) (*pgx.Conn, error) {
	if w.conn != nil && !w.conn.IsClosed() {
		return w.conn, nil
	}
	conn, err := pgx.Connect(ctx, w.Journal)
	if err == nil {
		w.conn, w.variable = conn, ""
	}
	return conn, err
}

// fenced returns SQL with a fence in a comment.
func (w *writer) fenced(f fence.Fence, sql string) string {
	if w.Defect == unchecked {
		return sql
	}
	return sql + f.Comment()
}

// carry sets the session variable to a fence.
func (w *writer) carry(ctx context.Context, conn *pgx.Conn, f fence.Fence) error {
	if w.Defect == unchecked || w.variable == f.String() {
		return nil
	}
	w.variable = ""
	_, err := conn.Exec(ctx, f.Session())
	if err == nil {
		w.variable = f.String()
	}
	return err
}

// older counts the rows that were written with older tokens, as a new holder sees them, and tells
// the step of its grant.
func (w *writer) older(ctx context.Context, f fence.Fence, holder string) (rows int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	conn, err := w.connect(ctx)
	if err != nil {
		return 0, err
	}
	token := int64(f.Token(resource))
	step := model.Step{Kind: model.Granted, Actor: holder, Resource: string(resource), Token: token}
	err = conn.QueryRow(ctx, w.fenced(f, "SELECT count(*), pg_logical_emit_message(false, 'step', $2)::text FROM journal WHERE token < $1"), token, step.String()).Scan(&rows, nil)
	return rows, err
}

// write writes one row, and records the outcome. The fence is in comments or in the
// session variable; this changes with the fence, so that the proxy takes holds.
func (w *writer) write(ctx context.Context, f fence.Fence, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if w.last != f.String() {
		w.last, w.comments = f.String(), random.IntN(2) == 0
	}
	conn, err := w.connect(ctx)
	sql := insert
	if w.comments {
		sql = w.fenced(f, insert)
	} else if err == nil {
		err = w.carry(ctx, conn, f)
	}
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
		_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol, row)
	case 1:
		_, err = conn.Exec(ctx, sql, row)
	case 2:
		err = w.inSteps(ctx, conn, pgx.RepeatableRead, sql, row, random)
	default:
		err = w.inSteps(ctx, conn, pgx.ReadCommitted, sql, row, random)
	}
	r := record{What: wrote, Write: n, Token: token}
	r.Fate, r.Current = judged(err)
	if err != nil && r.Fate != refused {
		r.Error = err.Error()
	}
	w.tell(r)
}

const insert = "INSERT INTO journal (id, token) VALUES (@id, @token)"

// inSteps pauses before the commit.
func (w *writer) inSteps(ctx context.Context, conn *pgx.Conn, level pgx.TxIsoLevel, sql string, row pgx.NamedArgs, random *rand.Rand) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sql, row); err != nil {
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

// judged reads a refusal. The token that it names was the resource's at some moment
// during the call.
func judged(err error) (writeOutcome, fence.Token) {
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
