package securitytest

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
	"github.com/wirefence/wirefence/proxy/internal/scram"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// An unknown user is shown as many iterations as those that the query knows.
func TestUnknownUsersAreShownTheIterationsOfKnownOnes(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "PostgreSQL 18")
	w := start(t, 18)
	stack.Exec(t, w.admin(), "SET scram_iterations = 20000", "CREATE ROLE strong LOGIN PASSWORD 'open sesame'")
	addr := stack.Proxy(t, w.Postgres, proxy.Options{
		Upstream: w.upstream("sslmode=disable"), AuthQuery: "SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1", DatabaseURL: w.admin(),
	})
	wants(t, "a known user", outcome(t, addr, "sslmode=disable user=strong password='open sesame'"), "logged in")
	conn := stack.Raw(t, addr)
	client, _ := scram.NewClient(scram.Credentials{Password: "a guess"}, []string{scram.Mechanism}, nil)
	first, err := client.First()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(slices.Concat(stack.Startup(pgproto3.ProtocolVersion30, "postgres", "user", "nobody"), wire.Encode(&pgproto3.SASLInitialResponse{AuthMechanism: scram.Mechanism, Data: []byte(first)}))); err != nil {
		t.Fatal(err)
	}
	hears(t, conn, ",i=20000")
}
