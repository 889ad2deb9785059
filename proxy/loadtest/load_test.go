// Package loadtest lets many clients use the proxy for a while.
//
// TestSoak: clients of all manners come and go, with TLS and without, through two proxies, one
// of which speaks TLS to the server, which is stopped and crashes under them. Then the test
// looks for what was left behind.
//
// TestContention: writers with fences of many resources, in no order, meet takeovers of the same
// resources all the time. The test looks for a deadlock, a transaction without an end, a former
// token that is committed behind a newer one, and a refusal that isn't due. It reads the commits
// by logical decoding, which tells their order.
package loadtest

import (
	"flag"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

var (
	length = flag.Duration("length", 0, "how long clients soak or contend; 0 is 15s, or a fixed number of transactions")
	seed   = flag.Uint64("seed", 0, "of what contending clients do; 0 takes another each time")
)

// start starts a server that is ended with the test.
func start(t *testing.T, cfg servers.PostgresConfig) *servers.Postgres {
	t.Helper()
	return stack.Started(servers.StartPostgres(t.Context(), cfg)).EndWith(t)
}
