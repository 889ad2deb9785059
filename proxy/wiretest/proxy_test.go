package wiretest

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// stackProxy starts a proxy before the server and returns its first address.
func stackProxy(t testing.TB, pl *place, o proxy.Options) string {
	t.Helper()
	return stack.Proxy(t, pl.Postgres, o)
}

// cutProxy starts a proxy before the server and returns its address, at which bytes that
// are sent one by one are read one by one: a Unix socket. There is no TLS on one, so where
// connections are encrypted it is a port, at which each byte has a record of its own.
func cutProxy(t testing.TB, pl *place, o proxy.Options) string {
	t.Helper()
	if stack.Secured() {
		return stackProxy(t, pl, o)
	}
	socket := unixSocket(t)
	o.Listen = []string{"unix:" + socket}
	stackProxy(t, pl, o)
	return socket
}

// Whether connections are encrypted is the run's choice, and holds on both sides.
func TestConnectionsAreEncryptedOrNot(t *testing.T) {
	t.Parallel()
	pl := at(t, majors[0])
	p := login(t, pl, stackProxy(t, pl, proxy.Options{}))
	_, client := p.Conn.(*tls.Conn)
	server := p.Value("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == "t"
	if client != stack.Secured() || server != stack.Secured() {
		t.Errorf("the client's side is encrypted: %t, the server's: %t; want %t", client, server, stack.Secured())
	}
}

// unixSocket returns the path for a socket of a test's own. A test's own folder
// could have too long a name.
func unixSocket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wf-sock-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, ".s.PGSQL.6433")
}

// start starts a proxy before the upstream, postgres://…, whose end is the test's
// matter: a test that doesn't wait for it doesn't ask how it went.
func start(t testing.TB, upstream string, o proxy.Options) *stack.Running {
	t.Helper()
	o.Upstream = upstream
	r, err := stack.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop() })
	return r
}
