package wiretest

import (
	"context"

	"github.com/jackc/pgx/v5/pgproto3"
)

// The frontend's messages, in short.

func q(sql string) *pgproto3.Query { return &pgproto3.Query{String: sql} }

func parse(name, sql string) *pgproto3.Parse { return &pgproto3.Parse{Name: name, Query: sql} }

func bind(portal, statement string, params ...string) *pgproto3.Bind {
	values := make([][]byte, len(params))
	for i, p := range params {
		values[i] = []byte(p)
	}
	return &pgproto3.Bind{DestinationPortal: portal, PreparedStatement: statement, Parameters: values}
}

func describe(what byte, name string) *pgproto3.Describe {
	return &pgproto3.Describe{ObjectType: what, Name: name}
}

func execute(portal string, limit uint32) *pgproto3.Execute {
	return &pgproto3.Execute{Portal: portal, MaxRows: limit}
}

func closing(what byte, name string) *pgproto3.Close {
	return &pgproto3.Close{ObjectType: what, Name: name}
}

func data(text string) *pgproto3.CopyData     { return &pgproto3.CopyData{Data: []byte(text)} }
func copyFail(text string) *pgproto3.CopyFail { return &pgproto3.CopyFail{Message: text} }

var (
	flush     = &pgproto3.Flush{}
	sync_     = &pgproto3.Sync{}
	copyDone  = &pgproto3.CopyDone{}
	terminate = &pgproto3.Terminate{}
)

// run is a statement by the extended protocol, without a Sync.
func run(sql string, params ...string) []pgproto3.FrontendMessage {
	return []pgproto3.FrontendMessage{parse("", sql), bind("", "", params...), execute("", 0)}
}

// all joins messages and runs of messages.
func all(parts ...any) (messages []pgproto3.FrontendMessage) {
	for _, part := range parts {
		switch m := part.(type) {
		case pgproto3.FrontendMessage:
			messages = append(messages, m)
		case []pgproto3.FrontendMessage:
			messages = append(messages, m...)
		default:
			panic("neither a message nor messages")
		}
	}
	return messages
}

// A step is what a script does next.
type step func(*peer)

func send(parts ...any) step    { return func(p *peer) { p.Send(all(parts...)...) } }
func raw(b []byte) step         { return func(p *peer) { p.Write(b) } }
func ready(n int) step          { return func(p *peer) { p.T.Helper(); p.Ready(n) } }
func until(typ byte) step       { return func(p *peer) { p.T.Helper(); p.Until(string(typ)) } }
func ends(p *peer)              { p.T.Helper(); p.End() }
func elsewhere(sql string) step { return func(p *peer) { p.place.Exec(p.T, sql) } }
func closeWrite(p *peer)        { _ = p.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// simple is a simple query and its answer.
func simple(sql string) step {
	return func(p *peer) { p.T.Helper(); p.query(sql) }
}

// synced sends messages and a Sync, and waits for the answer.
func synced(parts ...any) step {
	return func(p *peer) {
		p.T.Helper()
		p.Send(append(all(parts...), sync_)...)
		p.Ready(1)
	}
}

// killed ends the session's backend as an administrator does.
func killed(p *peer) {
	pid, _ := p.Key()
	if _, err := p.place.Admin.Exec(context.Background(), "SELECT pg_terminate_backend($1)", pid); err != nil {
		p.T.Fatalf("%v", err)
	}
}

// inBinary binds parameters in the binary format, the last of them null.
func inBinary(statement string) *pgproto3.Bind {
	return &pgproto3.Bind{
		PreparedStatement: statement, ParameterFormatCodes: []int16{1}, ResultFormatCodes: []int16{1, 0, 0},
		Parameters: [][]byte{{0, 1, 255}, {0, 0, 1, 0}, nil},
	}
}
