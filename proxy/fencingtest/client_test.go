package fencingtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/fence"
)

// direct connects past the proxy.
func (db *database) direct(t *testing.T, name string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value runs a query of one row and one column past the proxy.
func value[T any](t *testing.T, db *database, sql string, args ...any) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var v T
	if err := db.admin.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// exec runs statements past the proxy.
func (db *database) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	mustExec(t, db.admin, sql, args...)
}

// rows is how many rows jobs has.
func (db *database) rows(t *testing.T) int {
	t.Helper()
	return value[int](t, db, "select count(*) from jobs")
}

func (db *database) wantRows(t *testing.T, want int) {
	t.Helper()
	if got := db.rows(t); got != want {
		t.Errorf("%d rows were written, want %d", got, want)
	}
}

// seal records a grant.
func (db *database) seal(t *testing.T, resource string, token int64) {
	t.Helper()
	if !value[bool](t, db, "select wirefence.seal($1, $2, 'worker-b')", resource, token) {
		t.Fatalf("token %d of %s was not sealed", token, resource)
	}
}

// client is a connection whose every message is the test's.
type client struct {
	*pgconn.PgConn
	t     testing.TB
	notes []string // payloads of notifications that came outside of raw messages

	refusable bool // must takes a refusal of class WF, and what comes of it
}

// connect connects through the proxy. Settings are of the startup message, as
// whom: by default the superuser.
func (db *database) connect(t testing.TB, settings ...string) *client {
	t.Helper()
	c, err := db.dial(t, db.proxy, settings...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (db *database) dial(t testing.TB, addr string, settings ...string) (*client, error) {
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", addr, db.name))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(settings); i += 2 {
		if settings[i] == "user" {
			cfg.User = settings[i+1]
			continue
		}
		cfg.RuntimeParams[settings[i]] = settings[i+1]
	}
	c := &client{t: t}
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { c.notes = append(c.notes, n.Payload) }
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.PgConn, err = pgconn.ConnectConfig(ctx, cfg); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = c.PgConn.Close(ctx)
	})
	return c, nil
}

// protocol is a way to run one statement.
type protocol struct {
	name string
	run  func(c *client, sql string) error
}

var protocols = []protocol{
	{"simple", (*client).simple},
	{"extended", (*client).extended},
	{"prepared", (*client).prepared},
}

func (c *client) simple(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.Exec(ctx, sql).ReadAll()
	return err
}

func (c *client) extended(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.ExecParams(ctx, sql, nil, nil, nil, nil).Read().Err
}

func (c *client) prepared(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := c.Prepare(ctx, "statement", sql, nil); err != nil {
		return err
	}
	err := c.ExecPrepared(ctx, "statement", nil, nil, nil).Read().Err
	if c.TxStatus() == 'E' {
		// A Close is not allowed to fail, but a Prepare of that name would.
		if e := c.simple("ROLLBACK"); e != nil {
			c.t.Errorf("ROLLBACK: %v", e)
		}
	}
	if e := c.Deallocate(ctx, "statement"); e != nil {
		c.t.Errorf("Close: %v", e)
	}
	return err
}

// must runs statements that succeed, as simple queries.
func (c *client) must(statements ...string) {
	c.t.Helper()
	for _, sql := range statements {
		err := c.simple(sql)
		if err != nil && !(c.refusable && (fence.IsRefusal(err) || code(err) == "25P02")) {
			c.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// text is the first value that a simple query returns, "" for none.
func (c *client) text(sql string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
	for _, r := range results {
		if len(r.Rows) > 0 {
			return string(r.Rows[0][0])
		}
	}
	return ""
}

// fails runs a simple query that is refused with a code.
func (c *client) fails(sql, want string) {
	c.t.Helper()
	wantCode(c.t, c.simple(sql), want, sql)
}

// code is the SQLSTATE of an error, "" for none.
func code(err error) string {
	if err == nil {
		return ""
	}
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return err.Error()
}

func wantCode(t testing.TB, err error, want string, about ...any) {
	t.Helper()
	if got := code(err); got != want {
		t.Errorf("%v: got %q, want SQLSTATE %q (%v)", about, got, want, err)
	}
}

// send sends messages at once.
func (c *client) send(messages ...pgproto3.FrontendMessage) {
	c.t.Helper()
	_ = c.Conn().SetDeadline(time.Now().Add(patience))
	for _, m := range messages {
		c.Frontend().Send(m)
	}
	if err := c.Frontend().Flush(); err != nil {
		c.t.Fatal(err)
	}
}

// message is one of the server's, as JSON, with its type alone where a test
// asks for that.
type message struct{ kind, text string }

// receive reads up to the first message of one of the kinds.
func (c *client) receive(kinds ...string) (all []message) {
	c.t.Helper()
	_ = c.Conn().SetDeadline(time.Now().Add(patience))
	for {
		m, err := c.Frontend().Receive()
		if err != nil {
			c.t.Fatalf("%v behind %v", err, all)
		}
		text, err := json.Marshal(m)
		if err != nil {
			c.t.Fatal(err)
		}
		kind := strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3.")
		all = append(all, message{kind, string(text)})
		for _, want := range kinds {
			if kind == want {
				return all
			}
		}
	}
}

// exchange sends messages and reads what comes up to the n-th ReadyForQuery.
func (c *client) exchange(n int, messages ...pgproto3.FrontendMessage) (all []message) {
	c.t.Helper()
	c.send(messages...)
	for range n {
		all = append(all, c.receive("ReadyForQuery")...)
	}
	return all
}

// errorsIn lists the SQLSTATEs among messages.
func errorsIn(all []message) (codes []string) {
	for _, m := range all {
		if m.kind == "ErrorResponse" {
			var e struct{ Code string }
			_ = json.Unmarshal([]byte(m.text), &e)
			codes = append(codes, e.Code)
		}
	}
	return codes
}

// firstError is what raw messages brought, as an error.
func firstError(all []message) error {
	if codes := errorsIn(all); len(codes) > 0 {
		return &pgconn.PgError{Code: codes[0]}
	}
	return nil
}

// status is the transaction status in the last ReadyForQuery.
func status(all []message) string {
	var r struct{ TxStatus string }
	_ = json.Unmarshal([]byte(all[len(all)-1].text), &r)
	return r.TxStatus
}

// batch is an extended query with the unnamed statement and portal.
func batch(sql string) []pgproto3.FrontendMessage {
	return []pgproto3.FrontendMessage{&pgproto3.Parse{Query: sql}, &pgproto3.Bind{}, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{}}
}

// call is a fastpath call of a function of one integer, as text.
func (db *database) call(t *testing.T, function, argument string) *pgproto3.FunctionCall {
	t.Helper()
	oid := value[uint32](t, db, "select $1::regprocedure::oid", function)
	return &pgproto3.FunctionCall{Function: oid, Arguments: [][]byte{[]byte(argument)}}
}

// copyIn runs a COPY FROM STDIN by the extended protocol.
func (c *client) copyIn(name, sql string, rows ...string) error {
	c.t.Helper()
	messages := []pgproto3.FrontendMessage{&pgproto3.Parse{Name: name, Query: sql}, &pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{}, &pgproto3.Flush{}}
	if name != "" {
		messages = append([]pgproto3.FrontendMessage{&pgproto3.Close{ObjectType: 'S', Name: name}}, messages...)
	}
	c.send(messages...)
	all := c.receive("CopyInResponse", "ErrorResponse")
	if len(errorsIn(all)) == 0 {
		c.send(&pgproto3.CopyData{Data: []byte(strings.Join(rows, "\n") + "\n")}, &pgproto3.CopyDone{})
	}
	return firstError(append(all, c.exchange(1, &pgproto3.Sync{})...))
}

func (c *client) copySimple(sql string, rows ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.CopyFrom(ctx, bytes.NewReader([]byte(strings.Join(rows, "\n")+"\n")), sql)
	return err
}
