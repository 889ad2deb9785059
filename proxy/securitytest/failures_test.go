package securitytest

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Each login that fails is one line, with the SQLSTATE and the message that the client
// got, from the server or from the proxy.
func TestTheLogSaysWhyALoginFailed(t *testing.T) {
	t.Parallel()
	w := start(t, 18)
	stack.Exec(t, w.admin(), "ALTER ROLE trusted CONNECTION LIMIT 0")
	users := w.userFile(t, []string{"alice"})
	for _, c := range []struct{ name, users, params, state, reason string }{
		{"wrong password, server", "", "user=alice password=wrong", "28P01", `password authentication failed for user \"alice\"`},
		{"wrong password, proxy", users, "user=alice password=wrong", "28P01", `password authentication failed for user \"alice\"`},
		{"too many connections", "", "user=trusted", "53300", `too many connections for role \"trusted\"`},
		{"no such database", "", "user=postgres database=nowhere", "3D000", `database \"nowhere\" does not exist`},
		{"no entry", "", "user=onlytls password=x", "28000", `pg_hba.conf rejects connection`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log stack.Log
			addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=disable"), AuthFile: c.users, Logger: log.Logger()})
			outcome(t, addr, "sslmode=disable "+c.params)
			log.Await(t, "login failed")
			var lines []string
			for line := range strings.Lines(log.String()) {
				if !strings.Contains(line, "level=DEBUG") {
					lines = append(lines, line)
				}
			}
			if len(lines) != 1 || !strings.Contains(lines[0], "sqlstate="+c.state) || !strings.Contains(lines[0], c.reason) || strings.Contains(lines[0], "told") {
				t.Errorf("logged %q, want one line with %s and %s", lines, c.state, c.reason)
			}
		})
	}
}

// An upstream that can't be reached fails all clients alike: the first is logged, and at the
// end of the interval, or of the proxy, one more with the number of the others.
func TestAnUnreachableUpstreamIsLoggedOnce(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	var log stack.Log
	r, err := stack.Start(proxy.Options{Upstream: fmt.Sprintf("postgres://%s/?sslmode=disable", closed.Addr()), Logger: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			wants(t, "a client", outcome(t, r.Addr, "sslmode=disable user=alice"), "could not connect to the upstream server")
		})
	}
	clients.Wait()
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	text := log.String()
	if strings.Count(text, "no upstream server accepts the client") != 2 || !strings.Contains(text, "left_out=18") || strings.Contains(text, "login failed") {
		t.Errorf("logged %s", text)
	}
}
