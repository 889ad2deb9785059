package securitytest

import (
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

// startup is a client's startup packet.
func startup(t *testing.T, user string) []byte {
	t.Helper()
	msg := pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": user, "database": "postgres"}}
	b, err := msg.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// hears reads until a text has come, and returns what has.
func hears(t *testing.T, conn net.Conn, text string) string {
	t.Helper()
	var got []byte
	for b := make([]byte, 4096); !strings.Contains(string(got), text); {
		n, err := conn.Read(b)
		if got = append(got, b[:n]...); err != nil && !strings.Contains(string(got), text) {
			t.Fatalf("%q and %v, want %q", got, err, text)
		}
	}
	return string(got)
}

// A stranger who is asked for a password and says something else is sent away at
// once, whoever asks: nothing of what he sends is kept.
func TestAnythingButAPassword(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	for name, file := range map[string]string{"the server asks": "", "the proxy asks": w.userFile(t, []string{"alice"})} {
		addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=disable"), AuthFile: file})
		for _, answer := range []string{"Q\x00\x00\x00\x0dSELECT 1\x00", "Q\x3f\xff\xff\xff", "p\x00\x00\x00\x00"} {
			conn := dial(t, addr)
			if _, err := conn.Write(append(startup(t, "alice"), answer...)); err != nil {
				t.Fatal(err)
			}
			hears(t, conn, "C08P01\x00")
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second)) // less than the login may take
			if rest, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: after %q the connection stays open: %d bytes, %v", name, answer, rest, err)
			}
		}
	}
}
