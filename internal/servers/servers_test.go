package servers

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestPostgresStartsStopsAndRestarts(t *testing.T) {
	ctx := context.Background()
	for _, major := range PostgresVersions() {
		p, err := StartPostgres(ctx, PostgresConfig{Major: major})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		p.Kill()
		if err := p.Start(ctx); err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.Connect(ctx, p.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		var version string
		if err := conn.QueryRow(ctx, "show server_version_num").Scan(&version); err != nil {
			t.Fatal(err)
		}
		conn.Close(ctx)
		if got := strings.TrimLeft(version, " ")[:2]; got != string([]byte{byte('0' + major/10), byte('0' + major%10)}) {
			t.Errorf("asked for %d, got %s", major, version)
		}
	}
}

func TestRedisRestartsEmpty(t *testing.T) {
	ctx := context.Background()
	r, err := StartRedis(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	r.Kill()
	if r.ping(ctx) {
		t.Fatal("a killed server answers")
	}
	if err := r.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestPgBouncerPoolsAsItIsTold(t *testing.T) {
	ctx := context.Background()
	pg, err := StartPostgres(ctx, PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pg.Close)
	for mode, want := range map[string]bool{"session": false, "transaction": true} {
		b, err := StartPgBouncer(ctx, PgBouncerConfig{
			Upstream: pg.Addr(), Clients: 5, PoolSize: 1, PoolMode: mode,
			Passwords: map[string]string{"postgres": "secret"},
			Settings:  map[string]string{"auth_type": "plain", "query_wait_timeout": "1"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		if conn, err := pgx.Connect(ctx, b.URL("postgres")); err == nil {
			conn.Close(ctx)
			t.Errorf("%s: no password was asked for", mode)
		}
		first, err := pgx.Connect(ctx, b.url("postgres", "secret"))
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close(ctx)
		if _, err := first.Exec(ctx, "select", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		second, err := pgx.Connect(ctx, b.url("postgres", "secret"))
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close(ctx)
		_, err = second.Exec(ctx, "select", pgx.QueryExecModeSimpleProtocol)
		if shared := err == nil; shared != want {
			t.Errorf("%s: two clients share a server connection: %v (%v)", mode, shared, err)
		}
	}
}

// A server whose saved data are restored has the data of the time of the saving.
func TestEtcdKeepsItsDataAndForgetsWhatCameLater(t *testing.T) {
	ctx := context.Background()
	e, err := StartEtcd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	if _, err := e.SaveData(); err == nil {
		t.Error("the data of a running server was saved")
	}
	e.Kill()
	if e.healthy(ctx) {
		t.Error("a killed server answers")
	}
	saved, err := e.SaveData()
	if err != nil {
		t.Fatal(err)
	}
	later := filepath.Join(e.data(), "later")
	if err := os.WriteFile(later, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.RestoreData(saved); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(later); err == nil {
		t.Error("something is left that came later")
	}
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestSentinelsReplaceAKilledMasterByALaggingReplica(t *testing.T) {
	ctx := t.Context()
	s, err := StartRedisSentinel(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	do := func(server *Redis, args ...any) any {
		t.Helper()
		answer, err := server.Do(ctx, args...)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	do(s.Master, "set", "a", "replicated")
	if err := s.CatchUp(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.CutReplication(ctx); err != nil {
		t.Fatal(err)
	}
	do(s.Master, "set", "a", "lost")
	s.Master.Kill()
	if err := s.AwaitFailover(ctx); err != nil {
		t.Fatal(err)
	}
	if got := do(s.Replica, "get", "a"); got != "replicated" {
		t.Errorf("the new master has %q", got)
	}
}

func TestRedisClusterHasAllSlotsAndReplicas(t *testing.T) {
	ctx := t.Context()
	c, err := StartRedisCluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, key := range []string{"a", "b", "c", "d", "e", "{wirefence}"} {
		at, err := c.MasterOf(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Masters[at].Do(ctx, "set", key, "value"); err != nil {
			t.Error(err)
		}
		if n, err := c.Masters[at].Do(ctx, "wait", 1, 10000); err != nil || n != int64(1) {
			t.Errorf("%v replicas, %v", n, err)
		}
	}
}

func TestZooKeeperKeepsItsData(t *testing.T) {
	ctx := context.Background()
	z, err := StartZooKeeper(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.Close)
	if mode := z.Mode(ctx); mode != "standalone" {
		t.Errorf("mode %q", mode)
	}
	z.Kill()
	if mode := z.Mode(ctx); mode != "" {
		t.Errorf("a killed server is %s", mode)
	}
	logs, err := filepath.Glob(filepath.Join(z.data(), "version-2", "*"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no data: %v", err)
	}
	if err := z.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(logs[0]); err != nil {
		t.Error(err)
	}
}

func TestPrometheusAndAlertmanagerStart(t *testing.T) {
	ctx := context.Background()
	p, err := StartPrometheus(ctx, "global: {scrape_interval: 1s}\n")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	a, err := StartAlertmanager(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	if !p.ready(ctx) || !a.ready(ctx) {
		t.Error("a server that has started doesn't answer")
	}
	if other, err := StartPrometheus(ctx, "no configuration"); err == nil {
		other.Close()
		t.Error("Prometheus started without a configuration")
	} else if !strings.Contains(err.Error(), "ended while starting") {
		t.Error(err)
	}
}

// Each DROP DATABASE is a checkpoint, behind which a primary may remove the WAL that the
// copy begins with.
func TestAStandbyOfABusyServerStarts(t *testing.T) {
	p, err := StartPostgres(t.Context(), PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	conn, err := pgx.Connect(t.Context(), p.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	busy, done := make(chan struct{}), make(chan error, 1)
	go func() {
		defer conn.Close(context.Background())
		for {
			for _, sql := range []string{"CREATE DATABASE other", "SELECT pg_switch_wal()", "DROP DATABASE other"} {
				if _, err := conn.Exec(context.Background(), sql); err != nil {
					done <- err
					return
				}
			}
			select {
			case <-busy:
				done <- nil
				return
			default:
			}
		}
	}()
	standby, err := p.StartStandby(t.Context())
	close(busy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Close)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
