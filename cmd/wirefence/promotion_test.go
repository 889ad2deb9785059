package main

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// PostgreSQL fails over and loses the grants of a sidecar and of a lock. The lock ends
// its command; of the sidecars one leads, without a restart, and its application writes.
func TestHoldersCarryOnBehindAPromotion(t *testing.T) {
	t.Parallel()
	primary, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(primary.Close)
	stack.Exec(t, primary.URL("postgres"), "CREATE TABLE jobs (worker text)")
	conn := stack.Connect(t, primary.URL("postgres"))
	if err := migrations.Apply(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
	standby, err := primary.StartStandby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Close)
	if err := standby.FallBehind(t.Context(), primary); err != nil {
		t.Fatal(err)
	}

	url := fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable&target_session_attrs=read-write", primary.Addr(), standby.Addr())
	settings := []string{"WIREFENCE_DATABASE_URL=" + url, "WIREFENCE_REDIS_URL=" + redisServer(t).URL(), "WIREFENCE_TTL=3s"}
	upstream := fmt.Sprintf("WIREFENCE_UPSTREAM=postgres://%s,%s/?sslmode=disable&target_session_attrs=read-write", primary.Addr(), standby.Addr())
	leads := func(name string) *proxyProcess {
		return startProxy(t, primary.URL("postgres"), append(settings, upstream, "WIREFENCE_LEASE=promoted", "WIREFENCE_HOLDER="+name)...)
	}
	a := leads("a")
	awaitRole(t, a, "leader")
	b := leads("b")
	b.stderr.Await(t, "standing by for the lease")
	stack.Exec(t, a.url, "INSERT INTO jobs VALUES ('a')")
	lock := start(t, settings, "lock", "promoted lock", "--", "sh", "-c", "echo held; exec sleep 60")
	lock.stdout.Await(t, "held")

	primary.Kill()
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	lock.end(t).expect(t, 76, "failover of the database")
	leader := awaitWriter(t, a, b)
	if status, _ := get(t, "http://"+leader.admin+"/readyz?role=leader"); status != http.StatusOK {
		t.Errorf("who writes says %d of being the leader", status)
	}
	after := stack.Connect(t, standby.URL("postgres"))
	var token int64
	if err := after.QueryRow(t.Context(), "SELECT last_token FROM wirefence.resource_locks WHERE resource_id = 'promoted'").Scan(&token); err != nil || token < 1<<50 {
		t.Errorf("token %d, %v", token, err)
	}
	again := start(t, settings, "lock", "promoted lock", "--", "true")
	again.end(t).expect(t, 0)
}

// awaitWriter tries all proxies until a write through one succeeds, and returns that.
func awaitWriter(t *testing.T, proxies ...*proxyProcess) *proxyProcess {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		for _, p := range proxies {
			if err = insertVia(p.url); err == nil {
				return p
			}
		}
	}
	t.Fatalf("nobody writes: %v", err)
	return nil
}

func insertVia(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, "INSERT INTO jobs VALUES ('behind')")
	return err
}
