package main

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

// After a SIGHUP the next login asks the database anew whether functions release advisory locks, so
// one that a direct connection has made counts at once.
func TestHangupAsksForFunctionsAgain(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B')", "CREATE TABLE jobs (worker text)")
	p := startProxy(t, url)
	stack.Connect(t, p.url) // its login asks, and finds none
	stack.Exec(t, url, "CREATE FUNCTION unlocks() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_unlock_all()'")
	p.signal(t, syscall.SIGHUP)
	p.stderr.Await(t, "SIGHUP: other settings")
	if out := p.stderr.String(); !strings.Contains(out, `"msg":"reloaded","what":["look for functions that release locks"`) {
		t.Errorf("the log doesn't say what was reloaded:\n%s", out)
	}
	conn := stack.Connect(t, p.url)
	if _, err := conn.Exec(t.Context(), "SET wirefence.token = 'orders=34'"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "VACUUM jobs"); fence.StateOf(err) != fence.CannotBeFenced { // needs a hold
		t.Errorf("VACUUM in a session that must not hold gives %v", err)
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
	p.stderr.Await(t, "SIGHUP: other settings")
	_ = conn.Close()
	p.stderr.Await(t, `"msg":"serving"`)
	p.signal(t, syscall.SIGTERM)
	p.end(t).expect(t, 0)
}
