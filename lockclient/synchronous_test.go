package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient/postgres"
)

// A grant waits for a synchronous standby, whatever synchronous_commit its role has. If
// that wait is cancelled, PostgreSQL commits, and the seal is nevertheless not a grant.
func TestAGrantThatNoStandbyConfirms(t *testing.T) {
	ctx := t.Context()
	primary := stack.Started(servers.StartPostgres(ctx, servers.PostgresConfig{Settings: map[string]string{"synchronous_commit": "on"}})).EndWith(t)
	admin := stack.Connect(t, primary.URL("postgres"))
	migrate(t, admin)
	standby := stack.Started(primary.StartStandby(ctx)).EndWith(t)
	stack.Exec(t, primary.URL("postgres"), "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
	pools := map[string]*pgxpool.Pool{}
	for _, mode := range []string{"off", "local", "remote_write"} {
		for _, told := range []string{"warning", "error"} {
			role := "issuer_" + mode + "_" + told
			stack.Exec(t, primary.URL("postgres"), fmt.Sprintf(
				"CREATE ROLE %s LOGIN IN ROLE wirefence_issuer; ALTER ROLE %[1]s SET synchronous_commit = %[2]s; ALTER ROLE %[1]s SET client_min_messages = %[3]s",
				role, mode, told))
			pool := stack.Started(pgxpool.New(ctx, primary.URLFor(role, "postgres"))).EndWith(t)
			pools[role] = pool
			if sealed, err := fence.Seal(ctx, pool, fence.Grant{Resource: fence.Resource(role), Token: 1}); err != nil || !sealed {
				t.Fatalf("with a standby that follows: %v, %v", sealed, err)
			}
		}
	}
	if err := standby.FallBehind(ctx, primary); err != nil {
		t.Fatal(err)
	}
	for role, pool := range pools {
		for name, grant := range map[string]func() error{
			"a seal": func() error {
				_, err := fence.Seal(ctx, pool, fence.Grant{Resource: fence.Resource(role), Token: 2})
				return err
			},
			"an acquire": func() error {
				_, err := postgres.New(pool).Acquire(ctx, fence.Resource(role+" acquired"), "me", time.Minute)
				return err
			},
		} {
			done := make(chan error, 1)
			go func() { done <- grant() }()
			cancelSyncWait(t, admin, role)
			if err := <-done; !errors.Is(err, fence.ErrNotReplicated) {
				t.Errorf("%s by %s whose wait was cancelled: %v", name, role, err)
			}
			if err := pool.Ping(ctx); err != nil {
				t.Errorf("behind %s by %s: %v", name, role, err)
			}
		}
	}
}

// cancelSyncWait waits until a backend of a role waits for the standby, and cancels its
// query.
func cancelSyncWait(t *testing.T, admin *pgx.Conn, role string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var cancelled int
		err := admin.QueryRow(context.Background(), "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE usename = $1 AND wait_event = 'SyncRep'", role).Scan(&cancelled)
		if err != nil {
			t.Fatal(err)
		}
		if cancelled > 0 {
			return
		}
	}
	t.Fatalf("%s doesn't wait for the standby", role)
}
