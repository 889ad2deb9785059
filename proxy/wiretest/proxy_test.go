package wiretest

import (
	"net"
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

// rawDial connects without reading.
func rawDial(t testing.TB, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
