package main

import (
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
)

// A proxy whose clients are idle keeps at most two connections to its database, whether it has a
// lease or waits for one: there may be one for each pod. It opens others for moments.
func TestAnIdleProxyKeepsTwoConnections(t *testing.T) {
	t.Parallel()
	for store, settings := range map[string][]string{"PostgreSQL": nil, "Redis": {"WIREFENCE_REDIS_URL=" + redisServer(t).URL()}} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			url := database(t, true)
			conn, sidecar := stack.Connect(t, url), append(settings[:len(settings):len(settings)], "WIREFENCE_LEASE=orders")
			holder := startProxy(t, url, append(sidecar, "WIREFENCE_DATABASE_URL="+url+"&application_name=holder")...)
			holder.stderr.Await(t, "holding the lease")
			runs(t, stack.Connect(t, holder.url), "SELECT")
			startProxy(t, url, append(sidecar, "WIREFENCE_DATABASE_URL="+url+"&application_name=standby")...)
			startProxy(t, url, append(settings[:len(settings):len(settings)], "WIREFENCE_DATABASE_URL="+url+"&application_name=shared")...)
			for _, name := range []string{"holder", "standby", "shared"} {
				const rest = 6 * time.Second
				since := time.Now()
				stack.Eventually(t, name+" has two connections for a while", func() bool {
					var kept int
					err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE $1 || '%' AND datname = current_database() AND backend_start < clock_timestamp() - interval '1 s'", name).Scan(&kept)
					if err != nil {
						t.Fatal(err)
					}
					if kept > 2 {
						since = time.Now()
					}
					return time.Since(since) > rest
				})
			}
		})
	}
}
