package securitytest

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A client that lets TLS answer, and takes no answers, is not read any more: what waits
// for it has a bound. Others are served meanwhile.
func TestAnswersThatAreNotTaken(t *testing.T) {
	stack.NeedsMore(t, "6 s of CPU")
	t.Parallel()
	w := start(t, 15)
	addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=disable"), TLS: w.certificate(t), DrainTimeout: time.Second})
	conn := stack.Raw(t, addr)
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_ = conn.(*net.TCPConn).SetWriteBuffer(64 << 10)
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

// A server that asks TLS for an answer while it takes no bytes is read on: it may go on
// only when the client has read what it sends. Nothing of what the client has sent is
// lost meanwhile.
func TestAServerThatAsksForAnswersAndTakesNothing(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	const queries, size = 512, 64 << 10 // more than the kernel keeps on the way
	const updates = 10                  // crypto/tls takes 16 records in a row that bring no data
	cfg := &tls.Config{Certificates: []tls.Certificate{w.ca.Issue(t, "127.0.0.1", "127.0.0.1").Load(t)}, NextProtos: []string{"postgresql"}}
	read := make(chan error, 1)
	server := stack.Scripted(t, func(conn net.Conn) {
		_ = conn.SetDeadline(time.Now().Add(stack.Patience))
		keys, client := stack.NewKeyUpdater(t, conn, cfg)
		back := pgproto3.NewBackend(client, nil)
		if _, err := back.ReceiveStartupMessage(); err != nil {
			read <- err
			return
		}
		said, _ := (&pgproto3.AuthenticationOk{}).Encode(nil)
		said, _ = (&pgproto3.ReadyForQuery{TxStatus: 'I'}).Encode(said)
		_, _ = keys.Write(keys.Data(nil, said))
		// The client's queries fill the sockets.
		time.Sleep(300 * time.Millisecond)
		notice, _ := (&pgproto3.NoticeResponse{Message: "there"}).Encode(nil)
		for range updates {
			_, _ = keys.Write(keys.Data(keys.Update(t, nil), notice))
		}
		back.SetMaxBodyLen(2 * size)
		for range queries {
			if _, err := back.Receive(); err != nil {
				read <- err
				return
			}
		}
		read <- nil
		_, _ = io.Copy(io.Discard, client)
	})
	r := stack.Serve(t, proxy.Options{Upstream: "postgres://" + server + "/?sslmode=verify-full&sslnegotiation=direct&sslrootcert=" + w.ca.CAFile, Mode: proxy.Off})
	client := stack.NewClient(t, stack.Raw(t, r.Addr))
	client.Write(stack.Startup(pgproto3.ProtocolVersion30, "postgres"))
	query, _ := (&pgproto3.Query{String: strings.Repeat("-", size)}).Encode(nil)
	wrote := make(chan error, 1)
	go func() {
		_, err := client.Conn.Write(bytes.Repeat(query, queries))
		wrote <- err
	}()
	for range updates {
		client.Until("N")
	}
	if err := errors.Join(<-wrote, <-read); err != nil {
		t.Error(err)
	}
}
