package poolertest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// client is an application's connection.
type client struct {
	*pgconn.PgConn
	t *testing.T
}

func (p *place) connect(addr string, settings ...string) *client {
	p.t.Helper()
	c, err := p.dial(addr, settings...)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// dial connects with settings of the startup packet, by name and value.
func (p *place) dial(addr string, settings ...string) (*client, error) {
	cfg, err := pgconn.ParseConfig(stack.URL(addr, p.db))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(settings); i += 2 {
		cfg.RuntimeParams[settings[i]] = settings[i+1]
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	p.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return &client{conn, p.t}, nil
}

// hangUp ends the connection, and with it the transaction that it left open.
func (c *client) hangUp() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.TxStatus() != 'I' {
		c.must("ROLLBACK")
	}
	if err := c.Close(ctx); err != nil {
		c.t.Error(err)
	}
}

// protocols are the ways to run one statement that a transaction pooler has.
var protocols = map[string]func(*client, string, ...string) error{
	"simple": (*client).simple, "extended": (*client).extended,
}

func (c *client) simple(sql string, _ ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.Exec(ctx, sql).ReadAll()
	return err
}

// extended runs a statement as the unnamed one, with parameters.
func (c *client) extended(sql string, args ...string) error {
	var params [][]byte
	for _, a := range args {
		params = append(params, []byte(a))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.ExecParams(ctx, sql, params, nil, nil, nil).Read().Err
}

// function is the object id of a function.
func (p *place) function(signature string) uint32 {
	p.t.Helper()
	return uint32(p.number("SELECT $1::regprocedure::oid::bigint", signature))
}

// call calls a function by the protocol's own message, with arguments as text.
func (c *client) call(function uint32, args ...string) error {
	c.t.Helper()
	m := pgproto3.FunctionCall{Function: function}
	for _, a := range args {
		m.Arguments = append(m.Arguments, []byte(a))
	}
	c.send(&m)
	c.flush()
	return c.answer()
}

func (c *client) send(messages ...pgproto3.FrontendMessage) {
	for _, m := range messages {
		c.Frontend().Send(m)
	}
}

func (c *client) flush() {
	c.t.Helper()
	if err := c.Frontend().Flush(); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads up to a ReadyForQuery and returns the error before it, or nil.
func (c *client) answer() (failure error) {
	c.t.Helper()
	for {
		if err := c.Conn().SetDeadline(time.Now().Add(patience)); err != nil {
			c.t.Fatal(err)
		}
		back, err := c.Frontend().Receive()
		if err != nil {
			c.t.Fatal(err)
		}
		switch m := back.(type) {
		case *pgproto3.ErrorResponse:
			failure = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			_ = c.Conn().SetDeadline(time.Time{})
			return failure
		}
	}
}

// must runs simple queries that succeed.
func (c *client) must(statements ...string) {
	c.t.Helper()
	for _, sql := range statements {
		if err := c.simple(sql); err != nil {
			c.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// want runs a simple query that ends with an SQLSTATE; "" is success.
func (c *client) want(state, sql string) {
	c.t.Helper()
	wantState(c.t, c.simple(sql), state, sql)
}

// pid is the process id of the server connection that a transaction gets now.
func (c *client) pid() int {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	results, err := c.Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		c.t.Fatal(err)
	}
	n, err := strconv.Atoi(string(results[0].Rows[0][0]))
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// sqlstate is that of an error, "" for none.
func sqlstate(err error) string {
	if err == nil {
		return ""
	}
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return err.Error()
}

func wantState(t *testing.T, err error, want string, about ...any) {
	t.Helper()
	if got := sqlstate(err); got != want {
		t.Errorf("%v: got %q, want SQLSTATE %q (%v)", about, got, want, err)
	}
}

// insert is a write that says with which token it was made.
func insert(token int, rest string) string {
	return fmt.Sprintf("INSERT INTO jobs (token) VALUES (%d)%s", token, rest)
}

// comment carries a token.
func comment(token int) string { return fmt.Sprintf(" /*wirefence.token='orders=%d'*/", token) }
func itoa(n int) string        { return strconv.Itoa(n) }
