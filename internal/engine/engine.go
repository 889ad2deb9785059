// Package engine probes whether a server has the behaviour of PostgreSQL that fences need:
// advisory locks exclude each other, RAISE keeps its SQLSTATE, an error aborts the transaction,
// and the server reports its timeline. It ignores the version. It creates nothing; its locks
// have random keys and are released.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/timelines"
)

// Fault is a missing behaviour of PostgreSQL.
type Fault struct {
	Says  string // what the server did instead
	Means string // the consequence for fences
}

// Probe tests one behaviour. The connections must be outside a transaction and lead to the same
// server; most probes need only the first.
type Probe struct {
	Name string // stable: a word
	Run  func(ctx context.Context, one, other *pgx.Conn) ([]Fault, error)
}

// Probes are the tests that every server must pass.
var Probes = []Probe{{"locks", locks}, {"sqlstate", sqlstate}, {"abort", abort}}

// Faults runs all probes.
func Faults(ctx context.Context, one, other *pgx.Conn) (all []Fault, err error) {
	for _, p := range Probes {
		found, err := p.Run(ctx, one, other)
		if err != nil {
			return nil, fmt.Errorf("probe %s: %w", p.Name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

const raiseSQL = `DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'WF001', MESSAGE = 'Wirefence probes how errors are told',
	DETAIL = 'a detail', HINT = 'a hint'; END $$`

// sqlstate raises an error as refusals are raised.
func sqlstate(ctx context.Context, one, _ *pgx.Conn) ([]Fault, error) {
	const means = "Clients and the proxy know a refusal by its SQLSTATE; here they would take it for another error."
	_, err := ask(ctx, one, raiseSQL)
	refusal := (*pgconn.PgError)(nil)
	switch {
	case err == nil:
		return []Fault{{"RAISE EXCEPTION raises no error", "A check could refuse nothing."}}, nil
	case !errors.As(err, &refusal):
		return nil, err
	case fails(refusal):
		return nil, fmt.Errorf("the server itself fails, not its behaviour; see its log: %w", err)
	case refusal.Code != "WF001":
		return []Fault{{fmt.Sprintf("RAISE with the SQLSTATE WF001 arrives as %s: %s", refusal.Code, refusal.Message), means}}, nil
	case refusal.Detail != "a detail" || refusal.Hint != "a hint":
		return []Fault{{"RAISE loses its DETAIL or HINT", "A refusal doesn't say which token is current, and whose."}}, nil
	}
	return nil, nil
}

// fails reports whether an error comes from the server's environment: resources, an operator, or
// the system, as when the server's files are replaced while it runs.
func fails(e *pgconn.PgError) bool {
	return strings.HasPrefix(e.Code, "53") || strings.HasPrefix(e.Code, "57") || strings.HasPrefix(e.Code, "58")
}

// abort checks that nothing runs after an error: in one message, in one pipeline, in one
// transaction.
func abort(ctx context.Context, one, _ *pgx.Conn) (found []Fault, err error) {
	const means = "Statements after a refused check would be run and committed."
	for _, group := range []struct {
		name     string
		messages []pgproto3.FrontendMessage
	}{
		{"message", []pgproto3.FrontendMessage{&pgproto3.Query{String: raiseSQL + "; SELECT 1"}}},
		{"pipeline", []pgproto3.FrontendMessage{
			&pgproto3.Parse{Query: raiseSQL}, &pgproto3.Bind{}, &pgproto3.Execute{},
			&pgproto3.Parse{Query: "SELECT 1"}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{},
		}},
	} {
		ran, err := answers(ctx, one, group.messages)
		if err != nil {
			return nil, err
		}
		if ran {
			found = append(found, Fault{"a statement was run behind one that failed in the same " + group.name, means})
		}
	}
	return inABlock(ctx, one, found, means)
}

// answers sends messages that end in ReadyForQuery, and reports whether a row came. pgx reads
// none after an error.
func answers(ctx context.Context, conn *pgx.Conn, messages []pgproto3.FrontendMessage) (row bool, err error) {
	pg := conn.PgConn()
	for _, m := range messages {
		pg.Frontend().Send(m)
	}
	if err := pg.Frontend().Flush(); err != nil {
		return false, err
	}
	for {
		received, err := pg.ReceiveMessage(ctx)
		if err != nil {
			_ = conn.Close(context.Background()) // the next message isn't known
			return false, err
		}
		switch received.(type) {
		case *pgproto3.DataRow:
			row = true
		case *pgproto3.ReadyForQuery:
			return row, nil
		}
	}
}

// inABlock adds the faults of a transaction in which a statement has failed.
func inABlock(ctx context.Context, one *pgx.Conn, found []Fault, means string) ([]Fault, error) {
	if _, err := ask(ctx, one, "BEGIN"); err != nil {
		return nil, err
	}
	if _, err := ask(ctx, one, raiseSQL); err != nil && !answered(err) {
		return nil, err
	}
	const inFailedTransaction = "25P02"
	_, err := ask(ctx, one, "SELECT 1")
	if err != nil && !answered(err) {
		return nil, err
	}
	if refusal := (*pgconn.PgError)(nil); !errors.As(err, &refusal) || refusal.Code != inFailedTransaction {
		found = append(found, Fault{"a transaction goes on after an error", means})
	}
	end := one.PgConn().ExecParams(ctx, "COMMIT", nil, nil, nil, nil).Read()
	if end.Err != nil && !answered(end.Err) {
		return nil, end.Err
	}
	if tag := end.CommandTag.String(); end.Err == nil && tag != "ROLLBACK" {
		found = append(found, Fault{fmt.Sprintf("COMMIT of a failed transaction answers %s, not ROLLBACK", tag), means})
	}
	return found, nil
}

// Timeline checks that the server reports its cluster and its timeline. A missing right of the
// connection's role is no fault.
func Timeline(ctx context.Context, one *pgx.Conn) ([]Fault, error) {
	_, err := timelines.Ask(ctx, one.PgConn())
	if refusal := (*pgconn.PgError)(nil); err == nil || errors.As(err, &refusal) && refusal.Code == "42501" {
		return nil, nil
	}
	if !answered(err) {
		return nil, err
	}
	return []Fault{{"the server doesn't tell its timeline: " + reason(err), "A promotion that loses grants isn't noticed: a former holder's token would count again."}}, nil
}

// ask runs one statement and returns the first column of its first row.
func ask(ctx context.Context, conn *pgx.Conn, sql string, args ...string) (string, error) {
	var parameters [][]byte
	for _, arg := range args {
		parameters = append(parameters, []byte(arg))
	}
	answer := conn.PgConn().ExecParams(ctx, sql, parameters, nil, nil, nil).Read()
	if answer.Err != nil || len(answer.Rows) == 0 || len(answer.Rows[0]) == 0 {
		return "", answer.Err
	}
	return string(answer.Rows[0][0]), nil
}

// answered reports whether an error is the server's answer, after which the connection can be
// used.
func answered(err error) bool {
	refusal := (*pgconn.PgError)(nil)
	return errors.As(err, &refusal) && cmp.Or(refusal.SeverityUnlocalized, refusal.Severity) == "ERROR"
}

// reason returns the server's message without the driver's words.
func reason(err error) string {
	if refusal := (*pgconn.PgError)(nil); errors.As(err, &refusal) {
		return strings.TrimSuffix(refusal.Message, ".")
	}
	return err.Error()
}
