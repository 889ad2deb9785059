package wiretest

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// converse writes bytes, closes its half if asked, and returns all that comes.
func converse(t *testing.T, addr, text string, half bool) string {
	t.Helper()
	conn := stack.Raw(t, addr)
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	if half {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	answer, err := io.ReadAll(conn)
	if err, ok := err.(net.Error); ok && err.Timeout() {
		t.Errorf("%.40q: the connection stays open", text)
	}
	return string(answer)
}

// Case 12: what is not a client ends its own connection and no other.
func TestGarbageOnThePort(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	addr := stack.PlainProxy(t, pl.Postgres)
	other := login(t, pl, addr)
	for _, c := range []struct {
		name, text string
		half       bool
		answer     string // what the answer holds; "" is none
	}{
		{"nothing", "", true, ""},
		{"one byte", "\x00", true, ""},
		{"half of a packet", "\x00\x00\x00\x40\x00\x03\x00\x00user", true, ""},
		{"a length of zero", "\x00\x00\x00\x00\x00\x03\x00\x00", false, "C08P01"},
		{"a length of 4", "\x00\x00\x00\x04", false, "C08P01"},
		{"a goodbye", "X\x00\x00\x00\x04", false, ""},
		{"a length of 4 GB", "\xff\xff\xff\xff\x00\x03\x00\x00", false, "C08P01"},
		{"a length of 2 GB", "\x7f\xff\xff\xff\x00\x03\x00\x00", false, "C08P01"},
		{"HTTP", "GET / HTTP/1.1\r\nHost: db\r\n\r\n", false, "C08P01"},
		{"TLS without asking", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", false, "C08P01"},
		{"protocol 2", "\x00\x00\x00\x08\x00\x02\x00\x00", false, "C0A000"},
		{"protocol 4", "\x00\x00\x00\x08\x00\x04\x00\x00", false, "C0A000"},
		{"no user", "\x00\x00\x00\x09\x00\x03\x00\x00\x00", false, "C28000"},
		{"a name without a value", "\x00\x00\x00\x0e\x00\x03\x00\x00user\x00\x00", false, "C"},
		{"no end", "\x00\x00\x00\x0c\x00\x03\x00\x00user", false, "C08P01"},
		{"plaintext behind an SSLRequest", "\x00\x00\x00\x08\x04\xd2\x16\x2f" + string(stack.Startup(v30, "postgres")), false, "C08P01"},
		{"plaintext behind a GSSENCRequest", "\x00\x00\x00\x08\x04\xd2\x16\x30" + string(stack.Startup(v30, "postgres")), false, "C08P01"},
		{"a CancelRequest that is too short", "\x00\x00\x00\x08\x04\xd2\x16\x2e", false, "C08P01"},
		{"noise", strings.Repeat("\x00\x00\x00\x09\xfe\xed\xfa\xce!", 50), false, "C0A000"},
	} {
		got := converse(t, addr, c.text, c.half)
		if c.answer == "" && got != "" || c.answer != "" && (!strings.HasPrefix(strings.TrimPrefix(got, "N"), "E") || !strings.Contains(got, "SFATAL\x00") || !strings.Contains(got, "\x00"+c.answer)) {
			t.Errorf("%s is answered by %q", c.name, got)
		}
		if strings.Count(got, "SFATAL") > 1 || strings.Contains(got, "R\x00\x00\x00\x08\x00\x00\x00\x00") {
			t.Errorf("%s is answered by %q", c.name, got)
		}
		if answer := other.query("SELECT 'alive'"); !strings.Contains(answer[1], "alive") {
			t.Errorf("%s: another session answers %q", c.name, answer)
		}
	}
}

// Both encryption requests are answered by N, and the session begins in plain.
func TestEncryptionIsDeclined(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	addr := stack.PlainProxy(t, pl.Postgres)
	conn := stack.Raw(t, addr)
	for _, request := range []string{"\x00\x00\x00\x08\x04\xd2\x16\x30", "\x00\x00\x00\x08\x04\xd2\x16\x2f"} {
		answer := make([]byte, 1)
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, answer); err != nil || answer[0] != 'N' {
			t.Fatalf("%q is answered by %q, %v", request, answer, err)
		}
	}
	if _, err := conn.Write(stack.Startup(v30, pl.Name)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 9)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "R\x00\x00\x00\x08\x00\x00\x00\x00" {
		t.Errorf("the login is answered by %q, %v", answer, err)
	}
}

// An impossible length in a session: PostgreSQL closes the connection without a
// word, the proxy says why. Other sessions go on.
func TestImpossibleLength(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	addr := stack.PlainProxy(t, pl.Postgres)
	other := login(t, pl, addr)
	for _, text := range []string{"Q\x00\x00\x00\x03", "Q\xff\xff\xff\xff", "S\x00\x00\x00\x00", "d\x7f\xff\xff\xff"} {
		p := login(t, pl, addr)
		p.Send(q("BEGIN; INSERT INTO t VALUES (1, 'a')"))
		p.Ready(1)
		p.Write([]byte(text))
		p.End()
		last := p.transcript()
		if e := last[len(last)-1]; !strings.HasPrefix(e, "E SFATAL | VFATAL | C08P01") {
			t.Errorf("%q is answered by %s", text, e)
		}
	}
	other.query("SELECT 1")
	pl.Becomes(t, "", "SELECT coalesce(string_agg(id::text, ' '), '') FROM t")
}
