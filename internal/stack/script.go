package stack

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
)

// Scripted is a server that accepts connections and calls serve, for behaviour that a real
// server can't be made to show. A connection is closed when serve returns, or at the test's end.
func Scripted(t testing.TB, serve func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				defer func() { _ = conn.Close() }()
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		stop()
		_ = l.Close()
		served.Wait()
	})
	return l.Addr().String()
}

// Relayed is an address between a client and a server. A function for each direction passes on
// what comes, up to its end; nil passes on all as it is.
func Relayed(t testing.TB, server string, requests, answers func(to, from net.Conn)) (addr string) {
	t.Helper()
	pass := func(how func(to, from net.Conn), to, from net.Conn) {
		if how != nil {
			how(to, from)
		} else {
			_, _ = io.Copy(to, from)
		}
	}
	return Scripted(t, func(client net.Conn) {
		up, err := net.Dial("tcp", server)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = up.Close() }()
		var both sync.WaitGroup
		both.Go(func() {
			pass(requests, up, client)
			_ = up.(*net.TCPConn).CloseWrite()
		})
		pass(answers, client, up)
		_ = client.Close()
		both.Wait()
	})
}

// Interposed is an address between a client and a server that has no TLS: what the
// server says goes through alter, message by message.
func Interposed(t testing.TB, server string, alter func(typ byte, msg []byte) []byte) (addr string) {
	t.Helper()
	return Relayed(t, server, nil, func(client, up net.Conn) {
		for {
			msg, err := ReadMessage(up, 5)
			if err != nil {
				return
			}
			if _, err := client.Write(alter(msg[0], msg)); err != nil {
				return
			}
		}
	})
}

// ReadMessage reads a whole message, whose head has 5 bytes, or 4 if it has no type.
func ReadMessage(from io.Reader, head int) ([]byte, error) {
	msg := make([]byte, head)
	if _, err := io.ReadFull(from, msg); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(msg[head-4:])
	if size < 4 {
		return nil, fmt.Errorf("a message %q has length %d", msg, size)
	}
	msg = append(msg, make([]byte, size-4)...)
	if _, err := io.ReadFull(from, msg[head:]); err != nil {
		return nil, err
	}
	return msg, nil
}
