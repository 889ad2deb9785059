package securitytest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
	"github.com/wirefence/wirefence/proxy/internal/scram"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

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
			conn := stack.Raw(t, addr)
			if _, err := conn.Write(append(stack.Startup(pgproto3.ProtocolVersion30, "postgres", "user", "alice"), answer...)); err != nil {
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

// Who sits between the proxy and the server may pass a login by SCRAM on, and
// then ask for the password in clear. The client, which trusts the proxy, is not
// asked.
func TestPasswordIsNotAskedForBehindScram(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	file := w.userFile(t, []string{"alice"}, `"trusted" "open sesame"`)
	const clear = "R\x00\x00\x00\x08\x00\x00\x00\x03"
	for name, user := range map[string]string{"behind SCRAM": "alice", "behind AuthenticationOk": "trusted"} {
		for _, ok := range []string{"", "R\x00\x00\x00\x08\x00\x00\x00\x00"} {
			between := stack.Interposed(t, w.Addr(), func(typ byte, msg []byte) []byte {
				if typ == 'R' && binary.BigEndian.Uint32(msg[5:]) == 0 {
					return []byte(ok + clear + ok)
				}
				return msg
			})
			addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: "postgres://" + between + "/?sslmode=disable", AuthFile: file})
			got := outcome(t, addr, "sslmode=disable user="+user+" password='open sesame'")
			if strings.HasPrefix(got, "logged in") || !strings.Contains(got, "demands an authentication method that the proxy does not support") && !strings.Contains(got, "asks the client for a password") {
				t.Errorf("%s, %q: %s", name, ok, got)
			}
		}
	}
}

// Who is asked for a password by the proxy, and stays silent, is told when the
// time is up.
func TestSilenceToTheProxy(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	addr := stack.Proxy(t, w.Postgres, proxy.Options{
		Upstream: w.upstream("sslmode=disable"), AuthFile: w.userFile(t, []string{"alice"}), StartupTimeout: time.Second})
	conn := stack.Raw(t, addr)
	if _, err := conn.Write(stack.Startup(pgproto3.ProtocolVersion30, "postgres", "user", "alice")); err != nil {
		t.Fatal(err)
	}
	hears(t, conn, "C57014\x00Mcanceling authentication due to timeout")
}

// Requests to cancel are bounded as silent connections are: each holds two
// sockets until a server has closed its own.
func TestCancelRequestsAreBounded(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	came := make(chan struct{}, 200)
	slow := stack.Scripted(t, func(conn net.Conn) {
		came <- struct{}{}
		_, _ = io.Copy(io.Discard, conn) // and never closes
	})
	addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: "postgres://" + slow + "/?sslmode=disable", MaxConnections: 2, MaxAddressLogins: 1000, ConnectTimeout: time.Minute})
	const request = "\x00\x00\x00\x10\x04\xd2\x16\x2epid.key."
	for range 102 { // as many as may be on their way in beside two sessions
		if _, err := io.WriteString(stack.Raw(t, addr), request); err != nil {
			t.Fatal(err)
		}
		<-came
	}
	next := stack.Raw(t, addr)
	_, _ = io.WriteString(next, request)
	_ = next.SetDeadline(time.Now().Add(10 * time.Second)) // less than a server may take
	if _, err := next.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("more requests to cancel are passed on than may be")
	}
}

// panicking is a log that fails at one message.
type panicking struct {
	slog.Handler
	at string
}

func (p panicking) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == p.at {
		panic("the log fails")
	}
	return p.Handler.Handle(ctx, r)
}
func (p panicking) WithAttrs(a []slog.Attr) slog.Handler {
	return panicking{p.Handler.WithAttrs(a), p.at}
}
func (p panicking) WithGroup(n string) slog.Handler { return panicking{p.Handler.WithGroup(n), p.at} }

// A login that fails by a bug leaves nothing behind: neither its place among the
// clients nor its connection to the server.
func TestPanicInALogin(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	closed := make(chan struct{}, 10)
	up := stack.Scripted(t, func(conn net.Conn) { // offers SCRAM, and waits
		_, _ = io.WriteString(conn, "R\x00\x00\x00\x17\x00\x00\x00\x0aSCRAM-SHA-256\x00\x00")
		_, _ = io.Copy(io.Discard, conn)
		closed <- struct{}{}
	})
	var log stack.Log
	addr := stack.Proxy(t, w.Postgres, proxy.Options{
		Upstream: "postgres://" + up + "/?sslmode=disable", AuthFile: w.userFile(t, []string{"hashed"}), MaxConnections: 1,
		Logger: slog.New(panicking{log.Logger().Handler(), "a user can't log in"}),
	})
	for range 2 {
		stack.Eventually(t, "a place that the login has left", func() bool {
			return !strings.Contains(outcome(t, addr, "sslmode=disable user=hashed password=x"), "too many")
		})
		select {
		case <-closed:
		case <-time.After(stack.Patience):
			t.Fatal("the connection to the server is left open")
		}
	}
	wants(t, "the log", log.String(), "a login failed")
}

// A query that a client sends behind its last word of a login to the proxy is
// answered when the login is done, and never if that fails.
func TestQueryBehindALogin(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=disable"), AuthFile: w.userFile(t, []string{"alice"})})
	for password, want := range map[string]string{"open sesame": "behind the login", "wrong": "C28P01\x00"} {
		conn := stack.Raw(t, addr)
		client, _ := scram.NewClient(scram.Credentials{Password: password}, []string{scram.Mechanism}, nil)
		first, err := client.First()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(slices.Concat(stack.Startup(pgproto3.ProtocolVersion30, "postgres", "user", "alice"), wire.Encode(&pgproto3.SASLInitialResponse{AuthMechanism: scram.Mechanism, Data: []byte(first)}))); err != nil {
			t.Fatal(err)
		}
		said := hears(t, conn, ",i=4096")
		final, err := client.Next(said[strings.Index(said, "r="):])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(wire.AppendQuery(wire.Encode(&pgproto3.SASLResponse{Data: []byte(final)}), "SELECT 'behind ' || 'the login'")); err != nil {
			t.Fatal(err)
		}
		if got := hears(t, conn, want); password == "wrong" && strings.Contains(got, "R\x00\x00\x00\x08\x00\x00\x00\x00") {
			t.Errorf("with a wrong password: %q", got)
		}
	}
}
