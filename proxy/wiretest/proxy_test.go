package wiretest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
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

// running is a proxy whose end is the test's matter.
type running struct {
	addr string
	stop context.CancelFunc // begins the drain
	over chan error         // what Serve returned
}

// start starts a proxy before the upstream, postgres://….
func start(t testing.TB, upstream string, o proxy.Options) *running {
	t.Helper()
	o.Upstream = upstream
	if o.Listen == nil {
		o.Listen = []string{"127.0.0.1:0"}
	}
	s, err := proxy.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{addr: s.Addrs()[0].String(), stop: stop, over: make(chan error, 1)}
	var served sync.WaitGroup
	served.Go(func() { r.over <- s.Serve(ctx) })
	t.Cleanup(func() {
		stop()
		served.Wait()
	})
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
