package main

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// migrate --wait waits for a server that is down, as a pod's network is in its first second, and for
// nothing that doesn't pass by itself.
func TestMigrateWaitsForAServer(t *testing.T) {
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	setting := []string{"WIREFENCE_DATABASE_URL=" + pg.URL("postgres")}
	wirefence(t, []string{"WIREFENCE_DATABASE_URL=" + pg.URL("nobodys")}, "migrate", "--wait=1h").expect(t, 1, "does not exist")
	pg.Kill()
	wirefence(t, setting, "migrate").expect(t, 1, "refused")
	wirefence(t, setting, "migrate", "--wait=10ms").expect(t, 1, "refused")
	waits := start(t, setting, "migrate", "--wait=1h")
	stack.Eventually(t, "it waits", func() bool { return strings.Contains(waits.stderr.String(), "waiting for the server for 1h") })
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := waits.end(t); r.status != 0 || strings.Count(r.stderr, "waiting") != 1 {
		t.Errorf("status %d\n%s", r.status, r.stderr)
	}
}
