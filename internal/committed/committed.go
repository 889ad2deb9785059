// Package committed runs one statement and tells whether its commit is as durable as the
// server's settings promise.
//
// A commit that waits for synchronous standbys can be cancelled. It has happened then, on
// this server alone, and PostgreSQL says so by a warning between the statement's result
// and the end of the exchange. pgx hands warnings to a function that the connection's owner
// has chosen when it was opened; so the exchange is made here.
package committed

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrNotReplicated says that a commit is on the primary, while no synchronous standby has
// confirmed it: a failover may lose it.
var ErrNotReplicated = errors.New("committed on the primary, but the wait for a synchronous standby was cancelled")

// Conn returns the connection that runs a statement, and a function that gives it
// back. from is a connection, a pool or a transaction; anything else is an error.
func Conn(ctx context.Context, from any) (*pgx.Conn, func(), error) {
	switch from := from.(type) {
	case *pgx.Conn:
		return from, func() {}, nil
	case interface {
		Acquire(ctx context.Context) (*pgxpool.Conn, error)
	}:
		conn, err := from.Acquire(ctx)
		if err != nil {
			return nil, nil, err
		}
		return conn.Conn(), conn.Release, nil
	case interface{ Conn() *pgx.Conn }: // a transaction, or a connection of a pool
		return from.Conn(), func() {}, nil
	}
	return nil, nil, fmt.Errorf("%T is neither a connection nor a pool", from)
}

// Row runs a statement that returns one row, and returns its columns as text, nil for
// null. Arguments are string, int64, []byte or nil. The error of a refusal is a
// *pgconn.PgError. After ErrNotReplicated the columns are there.
func Row(ctx context.Context, conn *pgx.Conn, sql string, args ...any) ([][]byte, error) {
	parameters, err := encode(args)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	pg := conn.PgConn()
	to := pg.Frontend()
	to.SendParse(&pgproto3.Parse{Query: sql})
	to.SendBind(&pgproto3.Bind{Parameters: parameters})
	to.SendExecute(&pgproto3.Execute{})
	to.SendSync(&pgproto3.Sync{})
	if err := to.Flush(); err != nil {
		_ = conn.Close(context.Background())
		return nil, err
	}
	var a answer
	for !a.ready {
		message, err := pg.ReceiveMessage(ctx)
		if err != nil {
			_ = conn.Close(context.Background()) // the rest of the answer may come later
			return nil, errors.Join(a.failed, err)
		}
		a.take(message)
	}
	return a.result()
}

// answer is the server's answer to a statement.
type answer struct {
	row              [][]byte
	complete, warned bool // warned: a notice came after the statement was complete
	failed           error
	ready            bool // the answer has ended
}

func (a *answer) take(message pgproto3.BackendMessage) {
	switch m := message.(type) {
	case *pgproto3.DataRow:
		a.row = clone(m.Values)
	case *pgproto3.CommandComplete:
		a.complete = true
	case *pgproto3.NoticeResponse:
		a.warned = a.warned || a.complete
	case *pgproto3.ErrorResponse:
		a.failed = pgconn.ErrorResponseToPgError(m)
	case *pgproto3.ReadyForQuery:
		a.ready = true
	}
}

func (a *answer) result() ([][]byte, error) {
	switch {
	case a.failed != nil:
		return nil, a.failed
	case a.row == nil:
		return nil, pgx.ErrNoRows
	case a.warned:
		return a.row, ErrNotReplicated
	}
	return a.row, nil
}

func clone(values [][]byte) [][]byte {
	row := make([][]byte, len(values))
	for i, v := range values {
		if v != nil {
			row[i] = append([]byte{}, v...)
		}
	}
	return row
}

func encode(args []any) ([][]byte, error) {
	parameters := make([][]byte, len(args))
	for i, arg := range args {
		switch arg := arg.(type) {
		case nil:
		case string:
			parameters[i] = []byte(arg)
		case int64:
			parameters[i] = strconv.AppendInt(nil, arg, 10)
		case []byte:
			parameters[i] = hex.AppendEncode([]byte(`\x`), arg)
		default:
			return nil, fmt.Errorf("an argument of type %T", arg)
		}
	}
	return parameters, nil
}
