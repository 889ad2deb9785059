package stack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Message is one message of either side, as its bytes say.
type Message struct {
	Type byte
	Body []byte
}

func (m Message) String() string { return fmt.Sprintf("%c %q", m.Type, m.Body) }

// Encode makes it a pgproto3.FrontendMessage: a test can send any.
func (m Message) Encode(dst []byte) ([]byte, error) {
	head := binary.BigEndian.AppendUint32(append(dst, m.Type), uint32(len(m.Body)+4))
	return append(head, m.Body...), nil
}

// Frontend is for pgproto3.FrontendMessage.
func (m Message) Frontend() {}

// Decode is for pgproto3.FrontendMessage.
func (m Message) Decode([]byte) error { return errors.New("a message is decoded by Backend") }

// Backend returns a message of the server as pgproto3 understands it.
func (m Message) Backend() pgproto3.BackendMessage {
	all, _ := m.Encode(nil)
	decoded, err := pgproto3.NewFrontend(bytes.NewReader(all), nil).Receive()
	if err != nil {
		panic(fmt.Sprintf("%v: %v", m, err))
	}
	return decoded
}

// Err is the error that an ErrorResponse tells of, nil for other messages.
func (m Message) Err() error {
	if m.Type != 'E' {
		return nil
	}
	return pgconn.ErrorResponseToPgError(m.Backend().(*pgproto3.ErrorResponse))
}

// State is the SQLSTATE of an error, "" for none; an error of another kind is told
// as it is.
func State(err error) string {
	if err == nil {
		return ""
	}
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return err.Error()
}

// WantState fails the test unless the error has the SQLSTATE; "" wants success.
func WantState(t testing.TB, err error, want string, about ...any) {
	t.Helper()
	if got := State(err); got != want {
		t.Errorf("%v: got %q, want SQLSTATE %q (%v)", about, got, want, err)
	}
}

// Err is the first error among messages, or nil.
func Err(all []Message) error {
	for _, m := range all {
		if err := m.Err(); err != nil {
			return err
		}
	}
	return nil
}

// States lists the SQLSTATEs of the errors among messages.
func States(all []Message) (states []string) {
	for _, m := range all {
		if err := m.Err(); err != nil {
			states = append(states, State(err))
		}
	}
	return states
}

// Types are the types of messages.
func Types(all []Message) string {
	var types []byte
	for _, m := range all {
		types = append(types, m.Type)
	}
	return string(types)
}

// Exchange sends messages and takes what comes up to the n-th ReadyForQuery.
func (c *Client) Exchange(n int, messages ...pgproto3.FrontendMessage) []Message {
	c.T.Helper()
	c.Send(messages...)
	return c.Ready(n)
}

// Batch sends messages with a Sync behind them, and returns the first error.
func (c *Client) Batch(messages ...pgproto3.FrontendMessage) error {
	c.T.Helper()
	c.Send(append(messages, &pgproto3.Sync{})...)
	_, err := c.collect(1)
	return err
}

// collect takes messages up to the n-th ReadyForQuery. The error is the first that
// the server told of, or else why the messages ended.
func (c *Client) collect(n int) ([]Message, error) {
	from := c.seen
	for range n {
		if _, err := c.Await(func(m Message) bool { return m.Type == 'Z' }); err != nil {
			if told := Err(c.Came(from)); told != nil {
				err = told
			}
			return c.Came(from), err
		}
	}
	all := c.Came(from)
	return all, Err(all)
}

// Unnamed is an extended query by the unnamed statement and portal, with parameters
// as text, without a Sync.
func Unnamed(sql string, params ...string) []pgproto3.FrontendMessage {
	return []pgproto3.FrontendMessage{
		&pgproto3.Parse{Query: sql}, &pgproto3.Bind{Parameters: texts(params)},
		&pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{},
	}
}

func texts(params []string) (all [][]byte) {
	for _, p := range params {
		all = append(all, []byte(p))
	}
	return all
}

// Query runs a simple query and returns its answer.
func (c *Client) Query(sql string) ([]Message, error) {
	c.T.Helper()
	c.Send(&pgproto3.Query{String: sql})
	return c.collect(1)
}

// Simple runs a simple query.
func (c *Client) Simple(sql string) error {
	c.T.Helper()
	_, err := c.Query(sql)
	return err
}

// Extended runs a statement as the unnamed one.
func (c *Client) Extended(sql string, params ...string) error {
	c.T.Helper()
	return c.Batch(Unnamed(sql, params...)...)
}

// Prepared runs a statement by a name, which it prepares and closes.
func (c *Client) Prepared(sql string) error {
	c.T.Helper()
	const name = "statement"
	if err := c.Batch(&pgproto3.Parse{Name: name, Query: sql}, &pgproto3.Describe{ObjectType: 'S', Name: name}); err != nil {
		return err
	}
	err := c.Batch(&pgproto3.Bind{PreparedStatement: name}, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{})
	if c.Ended() {
		return err
	}
	if c.TxStatus() == 'E' {
		// A Close is not allowed to fail, but a Prepare of that name would.
		if e := c.Simple("ROLLBACK"); e != nil {
			c.T.Errorf("ROLLBACK: %v", e)
		}
	}
	if e := c.Batch(&pgproto3.Close{ObjectType: 'S', Name: name}); e != nil {
		c.T.Errorf("Close: %v", e)
	}
	return err
}

// Call calls a function by a FunctionCall, with arguments as text.
func (c *Client) Call(function uint32, args ...string) error {
	c.T.Helper()
	c.Send(&pgproto3.FunctionCall{Function: function, Arguments: texts(args)})
	_, err := c.collect(1)
	return err
}

// Must runs simple queries that succeed.
func (c *Client) Must(statements ...string) {
	c.T.Helper()
	for _, sql := range statements {
		if err := c.Simple(sql); err != nil {
			c.T.Fatalf("%s: %v", sql, err)
		}
	}
}

// Fails runs a simple query that ends with an SQLSTATE; "" wants success.
func (c *Client) Fails(sql, want string) {
	c.T.Helper()
	WantState(c.T, c.Simple(sql), want, sql)
}

// Column is the first column of the rows among messages, "" for null.
func Column(all []Message) (values []string) {
	for _, m := range all {
		if m.Type == 'D' {
			values = append(values, string(m.Backend().(*pgproto3.DataRow).Values[0]))
		}
	}
	return values
}

// Value is the first value that a simple query returns, "" for none.
func (c *Client) Value(sql string) string {
	c.T.Helper()
	all, err := c.Query(sql)
	if err != nil {
		c.T.Fatalf("%s: %v", sql, err)
	}
	if values := Column(all); len(values) > 0 {
		return values[0]
	}
	return ""
}

// CopyOut runs a COPY TO STDOUT as a simple query and returns its data.
func (c *Client) CopyOut(sql string) (data string, err error) {
	c.T.Helper()
	all, err := c.Query(sql)
	for _, m := range all {
		if m.Type == 'd' {
			data += string(m.Body)
		}
	}
	return data, err
}

// CopyIn runs a COPY FROM STDIN as a simple query.
func (c *Client) CopyIn(sql string, rows ...string) error {
	c.T.Helper()
	c.Send(&pgproto3.Query{String: sql})
	if m, err := c.Await(isCopyAnswer); err != nil || m.Type != 'G' {
		return c.restOf(m, err)
	}
	c.Send(copyData(rows)...)
	_, err := c.collect(1)
	return err
}

// CopyInExtended runs a COPY FROM STDIN by a statement of that name.
func (c *Client) CopyInExtended(name, sql string, rows ...string) error {
	c.T.Helper()
	messages := []pgproto3.FrontendMessage{&pgproto3.Parse{Name: name, Query: sql}, &pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{}, &pgproto3.Flush{}}
	if name != "" {
		messages = append([]pgproto3.FrontendMessage{&pgproto3.Close{ObjectType: 'S', Name: name}}, messages...)
	}
	c.Send(messages...)
	m, err := c.Await(func(m Message) bool { return isCopyAnswer(m) && m.Type != 'Z' })
	if err == nil && m.Type == 'G' {
		c.Send(copyData(rows)...)
	}
	c.Send(&pgproto3.Sync{})
	return c.restOf(m, err)
}

func isCopyAnswer(m Message) bool { return strings.IndexByte("GEZ", m.Type) >= 0 }

func copyData(rows []string) []pgproto3.FrontendMessage {
	return []pgproto3.FrontendMessage{&pgproto3.CopyData{Data: []byte(strings.Join(rows, "\n") + "\n")}, &pgproto3.CopyDone{}}
}

// restOf takes what is left up to a ReadyForQuery behind a message, and returns the
// first error.
func (c *Client) restOf(m Message, err error) error {
	if err != nil {
		return err
	}
	if m.Type != 'Z' {
		_, err = c.collect(1)
	}
	if told := m.Err(); told != nil {
		return told
	}
	return err
}
