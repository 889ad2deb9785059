package securitytest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

const password = " user=alice password='open sesame'"

// Who may come in, by the proxy's settings and the client's.
func TestTLSOfClients(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	stranger := authority.New(t)
	root := " sslrootcert=" + w.ca.CAFile
	for _, c := range []struct {
		name   string
		change func(*proxy.TLS)
		params string
		want   string
	}{
		{"allow", nil, "sslmode=disable", "logged in"},
		{"allow", nil, "sslmode=require", "logged in"},
		{"allow", nil, "sslmode=verify-full" + root, "logged in"},
		{"allow", nil, "sslmode=verify-full sslrootcert=" + stranger.CAFile, "unknown authority"},
		{"allow", nil, "sslmode=require sslnegotiation=direct", "logged in"},
		{"require", func(o *proxy.TLS) { o.Mode = proxy.TLSRequire }, "sslmode=disable", "connections without TLS are not accepted"},
		{"require", func(o *proxy.TLS) { o.Mode = proxy.TLSRequire }, "sslmode=prefer", "logged in"},
		{"1.3", func(o *proxy.TLS) { o.MinVersion = "1.3" }, "sslmode=require", "logged in"},
		{"1.3", func(o *proxy.TLS) { o.MinVersion = "1.3" }, "sslmode=require ssl_max_protocol_version=TLSv1.2", "protocol version"},
	} {
		o := proxy.Options{Upstream: w.upstream("sslmode=disable"), TLS: w.certificate(t)}
		if c.change != nil {
			c.change(&o.TLS)
		}
		addr := stack.Proxy(t, w.Postgres, o)
		if strings.Contains(c.params, "ssl_max") { // pgx has no such parameter
			wants(t, c.name+", "+c.params, psql(t, addr, c.params+password, "SELECT 1"), c.want)
			continue
		}
		wants(t, c.name+", "+c.params, outcome(t, addr, c.params+password), c.want)
	}
}

// Clients' certificates, as clientcert in pg_hba.conf has it.
func TestCertificatesOfClients(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	alice, other, stranger := w.ca.Issue(t, "alice"), w.ca.Issue(t, "other"), authority.New(t).Issue(t, "alice")
	shows := func(p authority.Pair) string { return " sslcert=" + p.CertFile + " sslkey=" + p.KeyFile }
	for _, c := range []struct {
		mode proxy.ClientCert
		cert string
		want string
	}{
		{proxy.CertOptional, "", "logged in"},
		{proxy.CertOptional, shows(other), "logged in"},
		{proxy.CertOptional, shows(stranger), "certificate"},
		{"", "", "certificate"},
		{"", shows(other), "logged in"},
		{"", shows(stranger), "certificate"},
		{proxy.CertVerifyFull, shows(alice), "logged in"},
		{proxy.CertVerifyFull, shows(other), `certificate authentication failed for user "alice"`},
		{proxy.CertVerifyFull, "", "certificate"},
	} {
		o := proxy.Options{Upstream: w.upstream("sslmode=disable"), TLS: w.certificate(t)}
		o.TLS.ClientCAFile, o.TLS.ClientCert = w.ca.CAFile, c.mode
		addr := stack.Proxy(t, w.Postgres, o)
		got := outcome(t, addr, "sslmode=require"+c.cert+password)
		wants(t, fmt.Sprintf("%q, %q", c.mode, c.cert), got, c.want)
		if c.want != "logged in" && strings.HasPrefix(got, "logged in") {
			t.Errorf("%q, %q: %s", c.mode, c.cert, got)
		}
		without := "connections without TLS are not accepted" // nor a way round the certificate
		if c.mode == proxy.CertOptional {
			without = "logged in"
		}
		wants(t, fmt.Sprintf("%q without TLS", c.mode), outcome(t, addr, "sslmode=disable"+password), without)
	}
	o := proxy.Options{Upstream: w.upstream("sslmode=disable"), TLS: w.certificate(t)}
	o.TLS.ClientCAFile, o.TLS.Mode = w.ca.CAFile, proxy.TLSAllow
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "WIREFENCE_TLS_MODE=require") {
		t.Errorf("certificates are demanded of clients that need no TLS: %v", err)
	}
}

// Case 12: TLS from the first byte must name the protocol; older versions of TLS
// and whatever else begins like a handshake are refused; bytes between the
// request for TLS and the handshake are not the client's.
func TestTLSHandshakes(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=disable"), TLS: w.certificate(t)})
	const request = "\x00\x00\x00\x08\x04\xd2\x16\x2f"
	for _, c := range []struct {
		name   string
		before string
		cfg    *tls.Config
		fails  bool
	}{
		{"direct", "", &tls.Config{NextProtos: []string{"postgresql"}}, false},
		{"direct, among others", "", &tls.Config{NextProtos: []string{"h2", "postgresql"}}, false},
		{"direct without ALPN", "", &tls.Config{}, true},
		{"direct, another protocol", "", &tls.Config{NextProtos: []string{"http/1.1"}}, true},
		{"direct, TLS 1.1", "", &tls.Config{NextProtos: []string{"postgresql"}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, true},
		{"asked for", request, &tls.Config{}, false},
		{"asked for, ALPN", request, &tls.Config{NextProtos: []string{"postgresql"}}, false},
		{"asked for, another protocol", request, &tls.Config{NextProtos: []string{"http/1.1"}}, true},
	} {
		conn := stack.Raw(t, addr)
		if c.before != "" {
			_, _ = io.WriteString(conn, c.before)
			var answer [1]byte
			if _, err := io.ReadFull(conn, answer[:]); err != nil || answer[0] != 'S' {
				t.Fatalf("%s: TLS is answered by %q, %v", c.name, answer, err)
			}
		}
		c.cfg.RootCAs, c.cfg.ServerName = w.ca.Pool(), "proxy.test"
		secure := tls.Client(conn, c.cfg)
		err := secure.Handshake()
		if err == nil { // in TLS 1.3 the refusal comes behind the handshake
			_, err = secure.Write([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"))
			if answer, _ := io.ReadAll(secure); err == nil && !strings.Contains(string(answer), "asked for twice") {
				err = errors.New("closed")
			}
		}
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, text := range []string{
		request + "\x16\x03\x01\x00\x05hello", // in one packet: somebody in the middle
		"\x16\x03\x01\x00\x05hello", "\x16", "\x16\xff\xff\xff\xff",
	} {
		conn := stack.Raw(t, addr)
		_, _ = io.WriteString(conn, text)
		_ = conn.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(conn)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			continue // a reset is an answer
		}
		if err != nil || strings.HasPrefix(string(answer), "R") || strings.HasPrefix(string(answer), "S") {
			t.Errorf("%q is answered by %q, %v", text, answer, err)
		}
	}
}

// Over TLS a session is as good as without: notices and notifications while it
// is idle, large rows both ways, COPY, cancels, fences.
func TestSessionsOverTLS(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	name := stack.Database(t, w.Postgres)
	for _, up := range []string{"sslmode=disable", "sslmode=require"} {
		addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream(up), TLS: w.certificate(t)})
		url := fmt.Sprintf("postgres://postgres@%s/%s?sslmode=require", addr, name)
		ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
		defer cancel()
		conn := stack.Connect(t, url)

		if _, err := conn.Exec(ctx, "LISTEN news"); err != nil {
			t.Fatal(err)
		}
		stack.Exec(t, w.URL(name), "NOTIFY news, 'extra'")
		if n, err := conn.WaitForNotification(ctx); err != nil || n.Payload != "extra" {
			t.Fatalf("a notification while idle: %v, %v", n, err)
		}
		large := strings.Repeat("x", 5<<20)
		var back string
		if err := conn.QueryRow(ctx, "SELECT $1::text", large).Scan(&back); err != nil || back != large {
			t.Fatalf("5 MiB there and back: %d bytes, %v", len(back), err)
		}
		if _, err := conn.Exec(ctx, "CREATE TEMP TABLE t (id int, text text)"); err != nil {
			t.Fatal(err)
		}
		rows := make([][]any, 20000)
		for i := range rows {
			rows[i] = []any{i, "row"}
		}
		if n, err := conn.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"id", "text"}, pgx.CopyFromRows(rows)); err != nil || n != 20000 {
			t.Fatalf("COPY in: %d, %v", n, err)
		}
		if tag, err := conn.PgConn().CopyTo(ctx, io.Discard, "COPY t TO STDOUT"); err != nil || tag.RowsAffected() != 20000 {
			t.Fatalf("COPY out: %v, %v", tag, err)
		}
		stack.Exec(t, w.URL(name), "SELECT wirefence.seal('orders', (SELECT coalesce(max(last_token), 0) + 2 FROM wirefence.resource_locks), 'b')")
		_, err := conn.Exec(ctx, "/*wirefence.token='orders=1'*/ INSERT INTO t VALUES (1)")
		if stale := (*pgconn.PgError)(nil); !errors.As(err, &stale) || stale.Code != "WF001" {
			t.Fatalf("a stale write: %v", err)
		}
	}
}

// Case 9: a cancel request reaches the right server, encrypted as the session
// is.
func TestCancelOverTLS(t *testing.T) {
	t.Parallel()
	for _, major := range []int{15, 18} {
		w := start(t, major)
		// No server but one without TLS would take a cancel request in plain.
		addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=require"), TLS: w.certificate(t)})
		conn, err := connect(t, addr, "sslmode=require user=postgres")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
		defer cancel()
		over := make(chan error, 1)
		go func() {
			_, err := conn.Exec(ctx, "SELECT pg_sleep(600)").ReadAll()
			over <- err
		}()
		admin := stack.Connect(t, w.admin())
		for busy := false; !busy; {
			if err := admin.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND wait_event = 'PgSleep'").Scan(&busy); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.CancelRequest(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-over; err == nil || !strings.Contains(err.Error(), "57014") {
			t.Errorf("%d: the query ended with %v", major, err)
		}
	}
}

// A new certificate is shown from the next connection on; sessions that are
// there stay, and files that don't fit together change nothing.
func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	var log stack.Log
	pair := w.ca.Issue(t, "proxy.test")
	server, addr := serve(t, proxy.Options{
		Upstream: w.upstream("sslmode=disable"), Logger: log.Logger(),
		TLS: proxy.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile},
	})
	first, err := connect(t, addr, "sslmode=require"+password)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close(t.Context())
	shown := func() int64 {
		t.Helper()
		secure := tls.Client(stack.Raw(t, addr), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"postgresql"}})
		if err := secure.Handshake(); err != nil {
			t.Fatal(err)
		}
		return secure.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	before := shown()

	next := w.ca.Issue(t, "proxy.test")
	write(t, pair.CertFile, read(t, next.CertFile))
	if err := server.Reload(); err == nil {
		t.Error("a certificate that doesn't fit its key is reloaded without an error")
	}
	if now := shown(); now != before {
		t.Errorf("a certificate without its key is shown: %d", now)
	}
	write(t, pair.KeyFile, read(t, next.KeyFile))
	deadline := time.Now().Add(stack.Patience)
	for shown() == before { // found without being told
		if time.Now().After(deadline) {
			t.Fatal("the new certificate is not shown")
		}
	}
	if _, err := first.Exec(t.Context(), "SELECT 1").ReadAll(); err != nil {
		t.Errorf("a session from before: %v", err)
	}
	if strings.Contains(log.String(), "PRIVATE") {
		t.Error("the log holds a key")
	}
}
