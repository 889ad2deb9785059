// Package engine probes whether a server has the behaviour of PostgreSQL that fences need:
// advisory locks exclude each other, RAISE keeps its SQLSTATE, an error aborts the
// transaction, and a server tells its timeline. It doesn't ask for the version. It creates
// nothing; its locks have random keys and are released.
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

// Fault is a behaviour of PostgreSQL's that a server lacks.
type Fault struct {
	Says  string // what the server did instead
	Means string // what follows for fences
}

// Probe looks at one behaviour. The connections must be outside a transaction and lead to
// the same server; most probes need only the first.
type Probe struct {
	Name string // stable: a word
	Run  func(ctx context.Context, one, other *pgx.Conn) ([]Fault, error)
}

// Probes are those that every server must pass.
var Probes = []Probe{{"locks", locks}, {"sqlstate", sqlstate}, {"abort", abort}}

// Faults makes all probes.
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

// sqlstate raises an error as a refusal is raised.
func sqlstate(ctx context.Context, one, _ *pgx.Conn) ([]Fault, error) {
	const means = "Clients and the proxy know a refusal by its SQLSTATE; here they would take it for another error."
	_, err := ask(ctx, one, raiseSQL)
	refusal := (*pgconn.PgError)(nil)
	switch {
	case err == nil:
		return []Fault{{"RAISE EXCEPTION raises no error", "A check could refuse nothing."}}, nil
	case !errors.As(err, &refusal):
		return nil, err
	case refusal.Code != "WF001":
		return []Fault{{fmt.Sprintf("RAISE with the SQLSTATE WF001 arrives as %s: %s", refusal.Code, refusal.Message), means}}, nil
	case refusal.Detail != "a detail" || refusal.Hint != "a hint":
		return []Fault{{"RAISE loses its DETAIL or HINT", "A refusal doesn't say which token is current, and whose."}}, nil
	}
	return nil, nil
}

// abort checks that nothing runs behind an error: in one message, in one pipeline, in one
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
		answered, err := answers(ctx, one, group.messages)
		if err != nil {
			return nil, err
		}
		if answered {
			found = append(found, Fault{"a statement was run behind one that failed in the same " + group.name, means})
		}
	}
	return inABlock(ctx, one, found, means)
}

// answers reports whether a row came for messages that end in ReadyForQuery. pgx reads none
// behind an error.
func answers(ctx context.Context, conn *pgx.Conn, messages []pgproto3.FrontendMessage) (answered bool, err error) {
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
			_ = conn.Close(context.Background()) // what comes next is not known
			return false, err
		}
		switch received.(type) {
		case *pgproto3.DataRow:
			answered = true
		case *pgproto3.ReadyForQuery:
			return answered, nil
		}
	}
}

// inABlock adds what is wrong with a transaction in which a statement has failed.
func inABlock(ctx context.Context, one *pgx.Conn, found []Fault, means string) ([]Fault, error) {
	if _, err := ask(ctx, one, "BEGIN"); err != nil {
		return nil, err
	}
	if _, err := ask(ctx, one, raiseSQL); err != nil && !told(err) {
		return nil, err
	}
	const inFailedTransaction = "25P02"
	_, err := ask(ctx, one, "SELECT 1")
	if err != nil && !told(err) {
		return nil, err
	}
	if refusal := (*pgconn.PgError)(nil); !errors.As(err, &refusal) || refusal.Code != inFailedTransaction {
		found = append(found, Fault{"a transaction goes on after an error", means})
	}
	end := one.PgConn().ExecParams(ctx, "COMMIT", nil, nil, nil, nil).Read()
	if end.Err != nil && !told(end.Err) {
		return nil, end.Err
	}
	if tag := end.CommandTag.String(); end.Err == nil && tag != "ROLLBACK" {
		found = append(found, Fault{fmt.Sprintf("COMMIT of a failed transaction answers %s, not ROLLBACK", tag), means})
	}
	return found, nil
}

// Timeline checks that the server tells its cluster and its timeline. A missing right of the
// connection's role is no fault of the server.
func Timeline(ctx context.Context, one *pgx.Conn) ([]Fault, error) {
	_, err := timelines.Ask(ctx, one.PgConn())
	if refusal := (*pgconn.PgError)(nil); err == nil || errors.As(err, &refusal) && refusal.Code == "42501" {
		return nil, nil
	}
	if !told(err) {
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

// told reports whether an error is the server's answer, after which the connection is still
// good.
func told(err error) bool {
	refusal := (*pgconn.PgError)(nil)
	return errors.As(err, &refusal) && cmp.Or(refusal.SeverityUnlocalized, refusal.Severity) == "ERROR"
}

// reason is an error of the server's without the driver's words.
func reason(err error) string {
	if refusal := (*pgconn.PgError)(nil); errors.As(err, &refusal) {
		return strings.TrimSuffix(refusal.Message, ".")
	}
	return err.Error()
}
