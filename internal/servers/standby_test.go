package servers

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

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
