package securitytest

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A client that lets TLS answer, and takes no answers, is not read any more: what waits
// for it has a bound. Others are served meanwhile.
func TestAnswersThatAreNotTaken(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=disable"), TLS: w.certificate(t), DrainTimeout: time.Second})
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_ = conn.(*net.TCPConn).SetWriteBuffer(64 << 10)
	_ = conn.SetDeadline(time.Now().Add(stack.Patience))
	// Direct TLS, without an SSLRequest.
	keys, client := stack.NewKeyUpdater(t, conn, &tls.Config{RootCAs: w.ca.Pool(), ServerName: "proxy.test", NextProtos: []string{"postgresql"}})
	if _, err := keys.Write(keys.Data(nil, stack.Startup(pgproto3.ProtocolVersion30, "postgres"))); err != nil {
		t.Fatal(err)
	}
	front := pgproto3.NewFrontend(client, nil)
	for {
		msg, err := front.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if _, ready := msg.(*pgproto3.ReadyForQuery); ready {
			break
		}
	}
	flush, _ := (&pgproto3.Flush{}).Encode(nil)
	const enough = 128 << 20 // more than the kernel keeps for both
	sent := 0
	for sent < enough {
		var records []byte
		for len(records) < 32<<10 {
			records = keys.Data(keys.Update(t, records), flush)
		}
		_ = conn.SetWriteDeadline(time.Now().Add(3 * time.Second))
		n, err := keys.Write(records)
		sent += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
	}
	t.Logf("%d bytes were taken", sent)
	if sent >= enough {
		t.Errorf("%d bytes were taken of a client that takes no answers", sent)
	}
	other, err := connect(t, addr, "user=postgres dbname=postgres sslmode=require")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(t.Context(), "SELECT 1").ReadAll(); err != nil {
		t.Error(err)
	}
}
