package servers

import (
	"bufio"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// over is a connection to a Redis server, maybe by way of a link.
type over struct {
	t *testing.T
	net.Conn
	answers *bufio.Reader
}

func dial(t *testing.T, addr string) over {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return over{t, conn, bufio.NewReader(conn)}
}

// Answers that are none.
const (
	held   = "nothing"
	broken = "the connection's end"
)

// asks sends a request, "" for none, and requires its answer.
func (o over) asks(request, want string) {
	o.t.Helper()
	if request != "" {
		if _, err := o.Write([]byte(request + "\r\n")); err != nil {
			o.t.Fatal(err)
		}
	}
	patience := time.Minute
	if want == held {
		patience = 50 * time.Millisecond
	}
	_ = o.SetReadDeadline(time.Now().Add(patience))
	got, err := o.answers.ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		got = held
	} else if err != nil {
		got = broken
	}
	if got = strings.TrimSuffix(got, "\r\n"); got != want {
		o.t.Fatalf("%q is answered by %q, %v; want %q", request, got, err, want)
	}
}

func TestLinkFails(t *testing.T) {
	server, err := StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	link, err := StartLink(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	direct := dial(t, server.Addr())
	client := dial(t, link.Addr())
	client.asks("SET a 1", "+OK")

	link.Hold()
	client.asks("SET a 2", held)
	direct.asks("STRLEN a", ":1")
	direct.asks("INCR a", ":2")
	link.Restore()
	client.asks("", "+OK")
	direct.asks("INCR a", ":3")

	link.HoldAnswers()
	client.asks("SET a 10", held)
	direct.asks("INCR a", ":11")

	link.Cut()
	client.asks("", broken)
	if conn, err := net.Dial("tcp", link.Addr()); err == nil { // the reset may come a little later
		over{t, conn, bufio.NewReader(conn)}.asks("", broken)
		_ = conn.Close()
	}
	link.Restore()
	client = dial(t, link.Addr())
	client.asks("INCR a", ":12")
	client.asks("QUIT", "+OK")
	client.asks("", broken)

	client = dial(t, link.Addr())
	link.Hold()
	if _, err := client.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	link.Close()
	client.asks("", broken)
}
