package stack

import (
	"context"
	"encoding/binary"
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

// Interposed is an address between a client and a server that has no TLS: what the
// server says goes through alter, message by message.
func Interposed(t testing.TB, server string, alter func(typ byte, msg []byte) []byte) (addr string) {
	t.Helper()
	return Scripted(t, func(client net.Conn) {
		up, err := net.Dial("tcp", server)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = up.Close() }()
		go func() {
			_, _ = io.Copy(up, client)
			_ = up.Close()
		}()
		for head := make([]byte, 5); ; {
			if _, err := io.ReadFull(up, head); err != nil {
				return
			}
			msg := append([]byte(nil), head...)
			msg = append(msg, make([]byte, binary.BigEndian.Uint32(head[1:])-4)...)
			if _, err := io.ReadFull(up, msg[5:]); err != nil {
				return
			}
			if _, err := client.Write(alter(msg[0], msg)); err != nil {
				return
			}
		}
	})
}
