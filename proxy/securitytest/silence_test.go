package securitytest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// silent opens connections from an address of ours, sends what is given on each,
// and no more.
func silent(t *testing.T, addr, from string, n int, says string) (all []net.Conn) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: stack.Patience}
	for range n {
		conn, err := dialer.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		// One that has given way already may be closed.
		_, _ = io.WriteString(conn, says)
		all = append(all, conn)
	}
	return all
}

// words is what a connection that has given way was told.
func words(t *testing.T, conn net.Conn) string {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(stack.Patience))
	got, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a silent connection is left open")
	}
	return string(got)
}

// firstWords is what the first of these connections that gives way was told. The proxy may
// come to know them in another order than that in which they were opened.
func firstWords(t *testing.T, conns []net.Conn) string {
	t.Helper()
	said := make(chan string, len(conns))
	for _, conn := range conns {
		go func() {
			_ = conn.SetReadDeadline(time.Now().Add(stack.Patience))
			if got, err := io.ReadAll(conn); !errors.Is(err, os.ErrDeadlineExceeded) {
				said <- string(got)
			}
		}()
	}
	select {
	case got := <-said:
		return got
	case <-time.After(stack.Patience):
		t.Error("all silent connections are left open")
		return ""
	}
}

// Silence keeps nobody out, however many connections are silent, from however many
// addresses, and however far they have come in their login: the oldest ones give way.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	file := w.userFile(t, []string{"alice"})
	for name, c := range map[string]struct {
		file string // with which the proxy authenticates clients, not the server
		says string
	}{
		"nothing":                      {"", ""},
		"two bytes":                    {"", "\x00\x00"},
		"no password for the server":   {"", string(stack.Startup(pgproto3.ProtocolVersion30, "postgres", "user", "alice"))},
		"no password for the proxy":    {file, string(stack.Startup(pgproto3.ProtocolVersion30, "postgres", "user", "alice"))},
		"no password for an only user": {"", string(stack.Startup(pgproto3.ProtocolVersion30, "postgres", "user", "alice"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := proxy.Options{Upstream: w.upstream("sslmode=disable"), AuthFile: c.file, MaxConnections: 20, MaxAddressLogins: 30, StartupTimeout: time.Hour}
			if strings.HasSuffix(name, "only user") {
				o.MaxUserConnections = 2
			}
			registry := prometheus.NewRegistry()
			o.Registerer = registry
			addr := stack.Proxy(t, w.Postgres, o)
			oldest := silent(t, addr, "127.0.0.2", 40, c.says)
			for i := range 4 {
				silent(t, addr, fmt.Sprintf("127.0.0.%d", 3+i), 40, c.says)
			}
			// While the proxy works for all that may be served, one more is refused.
			got := outcome(t, addr, "sslmode=disable"+password)
			for began := time.Now(); strings.Contains(got, "53300") && time.Since(began) < stack.Patience; {
				got = outcome(t, addr, "sslmode=disable"+password)
			}
			wants(t, "beside two hundred", got, "logged in")
			// A part of a packet may be met by an end without words: what was sent behind
			// it was never read.
			if said := firstWords(t, oldest); said != "" {
				wants(t, "the one that gives way", said, "SFATAL\x00", "C53300\x00")
			}
			if n := stack.Metric(t, registry, "wirefence_rejected_connections_total", nil); n < 40 { // 200 less 120 in all, or 20 that are served
				t.Errorf("%v connections have given way", n)
			}
		})
	}
}

// With the default limits, 1,600 silent connections from a few addresses keep neither another
// address out nor those addresses themselves, and a client that was slow before them keeps
// its place.
func TestAFloodFromAFewAddresses(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=disable"), StartupTimeout: time.Hour})
	slow := silent(t, addr, "127.0.0.9", 1, "\x00\x00")[0]
	for i := range 4 {
		silent(t, addr, fmt.Sprintf("127.0.0.%d", 2+i), 400, "\x00\x00")
	}
	startup := string(stack.Startup(pgproto3.ProtocolVersion30, "postgres", "user", "alice"))
	served := func(conn net.Conn, who string) {
		t.Helper()
		_ = conn.SetReadDeadline(time.Now().Add(stack.Patience))
		var first [1]byte
		if _, err := io.ReadFull(conn, first[:]); err != nil || first[0] != 'R' {
			t.Errorf("%s: %q, %v", who, first, err)
		}
	}
	for _, from := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.5"} {
		served(silent(t, addr, from, 1, startup)[0], "a client at "+from)
	}
	if _, err := io.WriteString(slow, startup[2:]); err != nil {
		t.Fatal(err)
	}
	served(slow, "the slow client")
}

// A burst of logins from one address passes, beyond the bound of its silent ones,
// where the proxy and not the clients take the time.
func TestLoginsThatGoOnDontGiveWay(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	came, answer := make(chan struct{}), make(chan struct{})
	slow := stack.Scripted(t, func(conn net.Conn) {
		came <- struct{}{}
		<-answer
		_, _ = io.WriteString(conn, "E\x00\x00\x00\x12SFATAL\x00C57P03\x00\x00")
	})
	addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: "postgres://" + slow + "/?sslmode=disable", MaxAddressLogins: 2})
	all := silent(t, addr, "127.0.0.1", 2, string(stack.Startup(pgproto3.ProtocolVersion30, "postgres", "user", "alice")))
	<-came
	<-came
	third := silent(t, addr, "127.0.0.1", 1, "")
	wants(t, "the third", words(t, third[0]), "C53300\x00", "WIREFENCE_MAX_ADDRESS_LOGINS")
	close(answer)
	for _, conn := range all {
		wants(t, "the others", words(t, conn), "C57P03\x00")
	}
}
