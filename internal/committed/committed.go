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
	pg := conn.PgConn()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	pg.Frontend().SendParse(&pgproto3.Parse{Query: sql})
	pg.Frontend().SendBind(&pgproto3.Bind{Parameters: parameters})
	pg.Frontend().SendExecute(&pgproto3.Execute{})
	pg.Frontend().SendSync(&pgproto3.Sync{})
	if err := pg.Frontend().Flush(); err != nil {
		_ = conn.Close(context.Background())
		return nil, err
	}
	var row [][]byte
	complete, warned := false, false
	var failed error
	for {
		received, err := pg.ReceiveMessage(ctx)
		if err != nil {
			_ = conn.Close(context.Background()) // what comes next is not known
			return nil, errors.Join(failed, err)
		}
		switch m := received.(type) {
		case *pgproto3.DataRow:
			row = clone(m.Values)
		case *pgproto3.CommandComplete:
			complete = true
		case *pgproto3.NoticeResponse:
			warned = warned || complete
		case *pgproto3.ErrorResponse:
			failed = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			switch {
			case failed != nil:
				return nil, failed
			case row == nil:
				return nil, pgx.ErrNoRows
			case warned:
				return row, ErrNotReplicated
			}
			return row, nil
		}
	}
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
