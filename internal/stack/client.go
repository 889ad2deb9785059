package stack

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Patience bounds every wait of a test.
const Patience = 30 * time.Second

// Client is a connection of which the test controls every byte. A goroutine reads all that
// the other side sends, so a test that doesn't read doesn't block it. One goroutine at a time
// may use a Client.
type Client struct {
	T    testing.TB
	Conn net.Conn

	// Cut writes bytes to the connection; nil writes them whole.
	Cut func(conn net.Conn, b []byte) error
	// Text changes an SQL text before it is sent; nil changes nothing.
	Text func(sql string) string
	// Patience bounds each wait.
	Patience time.Duration
	// Explain adds to the message of a wait that failed; nil adds what came.
	Explain func() string

	seen int  // messages that were waited for
	tx   byte // of the last ReadyForQuery among them

	mu   sync.Mutex
	got  []Message
	err  error // the connection's end
	news chan struct{}
}

func (c *Client) read() {
	for {
		msg, err := ReadMessage(c.Conn, 5)
		c.mu.Lock()
		if err != nil {
			c.err = err
		} else {
			c.got = append(c.got, Message{Type: msg[0], Body: msg[5:]})
		}
		c.mu.Unlock()
		select {
		case c.news <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// Await takes messages up to the first that fits, and returns it. The error is the
// connection's end, or that time was up.
func (c *Client) Await(fits func(Message) bool) (Message, error) {
	timeout := time.NewTimer(c.Patience)
	defer timeout.Stop()
	for {
		c.mu.Lock()
		for c.seen < len(c.got) {
			m := c.got[c.seen]
			c.seen++
			if m.Type == 'Z' {
				c.tx = m.Body[0]
			}
			if fits(m) {
				c.mu.Unlock()
				return m, nil
			}
		}
		err := c.err
		c.mu.Unlock()
		if err != nil {
			return Message{}, err
		}
		select {
		case <-c.news:
		case <-timeout.C:
			return Message{}, fmt.Errorf("nothing came in %s", c.Patience)
		}
	}
}

// Until takes messages up to the first of one of the types, and returns them all.
func (c *Client) Until(types string) []Message {
	c.T.Helper()
	from := c.seen
	_, err := c.Await(func(m Message) bool { return strings.IndexByte(types, m.Type) >= 0 })
	if err != nil {
		c.T.Fatalf("waiting for a message of type %s: %v\n%s", types, err, c.story())
	}
	return c.Came(from)
}

// Ready takes messages up to the n-th ReadyForQuery, and returns them.
func (c *Client) Ready(n int) (all []Message) {
	c.T.Helper()
	for range n {
		all = append(all, c.Until("Z")...)
	}
	return all
}

// End waits until the other side has closed the connection, and returns the last
// error that it sent, or nil.
func (c *Client) End() error {
	c.T.Helper()
	var last error
	_, err := c.Await(func(m Message) bool {
		if m.Type == 'E' {
			last = m.Err()
		}
		return false
	})
	if !c.Ended() {
		c.T.Fatalf("the connection was not closed: %v\n%s", err, c.story())
	}
	return last
}

// Ended says whether the other side has closed the connection.
func (c *Client) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// CutOff says whether the connection ended within a message.
func (c *Client) CutOff() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Is(c.err, io.ErrUnexpectedEOF)
}

// TxStatus is the transaction status in the last ReadyForQuery that was waited for.
func (c *Client) TxStatus() byte { return c.tx }

// Taken is how many messages were waited for.
func (c *Client) Taken() int { return c.seen }

// Came returns the messages that were waited for, without the first ones.
func (c *Client) Came(from int) []Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got[from:c.seen])
}

// All returns all messages that came, also those that were not waited for.
func (c *Client) All() []Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

func (c *Client) story() string {
	if c.Explain != nil {
		return c.Explain()
	}
	var b strings.Builder
	for _, m := range c.All() {
		fmt.Fprintln(&b, m)
	}
	return "came:\n" + b.String()
}

// Write sends bytes. An error shows in what comes back.
func (c *Client) Write(b []byte) {
	c.T.Helper()
	var err error
	if c.Cut != nil {
		err = c.Cut(c.Conn, b)
	} else {
		_, err = c.Conn.Write(b)
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.T.Logf("writing: %v", err)
	}
}

// Send sends messages in one go.
func (c *Client) Send(messages ...pgproto3.FrontendMessage) {
	c.T.Helper()
	var all []byte
	for _, m := range messages {
		if c.Text != nil {
			switch sql := m.(type) {
			case *pgproto3.Query:
				m = &pgproto3.Query{String: c.Text(sql.String)}
			case *pgproto3.Parse:
				m = &pgproto3.Parse{Name: sql.Name, Query: c.Text(sql.Query), ParameterOIDs: sql.ParameterOIDs}
			}
		}
		var err error
		if all, err = m.Encode(all); err != nil {
			c.T.Fatal(err)
		}
	}
	c.Write(all)
}

// Socket is the connection below TLS, if there is any.
func (c *Client) Socket() net.Conn {
	if encrypted, ok := c.Conn.(*tls.Conn); ok {
		return encrypted.NetConn()
	}
	return c.Conn
}

// CloseWrite ends what the client sends, and reads on.
func (c *Client) CloseWrite() { _ = c.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// Close says goodbye and waits until the other side has closed the connection. It
// may be called more than once.
func (c *Client) Close() {
	c.T.Helper()
	if !c.Ended() {
		c.Send(&pgproto3.Terminate{})
		_ = c.End()
	}
	_ = c.Conn.Close()
}
