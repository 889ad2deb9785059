package servers

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// over asks a Redis server by way of a link.
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

func (o over) ask(request string) {
	o.t.Helper()
	if _, err := o.Write([]byte(request + "\r\n")); err != nil {
		o.t.Fatal(err)
	}
}

func (o over) answer(patience time.Duration) (string, error) {
	_ = o.SetReadDeadline(time.Now().Add(patience))
	return o.answers.ReadString('\n')
}

func (o over) wants(answer string) {
	o.t.Helper()
	if got, err := o.answer(time.Minute); got != answer+"\r\n" {
		o.t.Fatalf("the answer is %q, %v; want %q", got, err, answer)
	}
}

func (o over) wantsNothing() {
	o.t.Helper()
	if got, err := o.answer(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		o.t.Fatalf("the answer is %q, %v; it should be held", got, err)
	}
}

func (o over) wantsEnd() {
	o.t.Helper()
	if got, err := o.answer(time.Minute); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		o.t.Fatalf("the answer is %q, %v; the connection should be broken", got, err)
	}
}

func TestLinkFails(t *testing.T) {
	server, err := StartRedis(context.Background())
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
	client.ask("SET a 1")
	client.wants("+OK")

	link.Hold()
	client.ask("SET a 2")
	client.wantsNothing()
	direct.ask("STRLEN a")
	direct.wants(":1")
	direct.ask("INCR a")
	direct.wants(":2")
	link.Restore()
	client.wants("+OK")
	direct.ask("INCR a")
	direct.wants(":3")

	link.HoldAnswers()
	client.ask("SET a 10")
	client.wantsNothing()
	direct.ask("INCR a")
	direct.wants(":11")

	link.Cut()
	client.wantsEnd()
	if conn, err := net.Dial("tcp", link.Addr()); err == nil { // the reset may come a little later
		over{t, conn, bufio.NewReader(conn)}.wantsEnd()
		_ = conn.Close()
	}
	link.Restore()
	client = dial(t, link.Addr())
	client.ask("INCR a")
	client.wants(":12")
	client.ask("QUIT")
	client.wants("+OK")
	client.wantsEnd()

	client = dial(t, link.Addr())
	link.Hold()
	client.ask("PING")
	link.Close()
	client.wantsEnd()
}
