package servers

import (
	"context"
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
