package main

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

// What somebody changed past the proxy counts at once after a SIGHUP.
func TestHangupForgetsTheCatalog(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B')",
		"CREATE TABLE jobs (worker text)",
		"CREATE FUNCTION work() RETURNS int LANGUAGE sql STABLE AS 'SELECT 1'")
	p := startProxy(t, url)
	conn := stack.Connect(t, p.url)
	const stale = "SELECT work() /*wirefence.token='orders=33'*/"
	if _, err := conn.Exec(t.Context(), stale); err != nil {
		t.Fatalf("a read is refused: %v", err)
	}
	stack.Exec(t, url, "CREATE OR REPLACE FUNCTION work() RETURNS int LANGUAGE sql VOLATILE AS 'INSERT INTO jobs VALUES (''A'') RETURNING 1'")
	p.signal(t, syscall.SIGHUP)
	p.stderr.await(t, "SIGHUP: other settings")
	if out := p.stderr.String(); !strings.Contains(out, `"msg":"reloaded","what":["catalogs"`) {
		t.Errorf("what was reloaded isn't said:\n%s", out)
	}
	if _, err := conn.Exec(t.Context(), stale); !fence.IsStale(err) {
		t.Errorf("the function that writes now gives %v", err)
	}
	p.signal(t, syscall.SIGTERM)
	p.end(t).expect(t, 0)
}

// A SIGHUP that comes before the proxy serves is answered, too. The listener
// never answers, so the proxy hangs in its look at the schema.
func TestHangupBeforeServing(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	settings, _, _ := proxySettingsFor(t, "postgres://postgres@"+l.Addr().String()+"/x?sslmode=disable")
	p := start(t, settings, "proxy")
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p.signal(t, syscall.SIGHUP)
	p.stderr.await(t, "SIGHUP: other settings")
	_ = conn.Close()
	p.end(t).expect(t, 1)
}
