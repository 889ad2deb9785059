package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// Case 20 on the process itself: what a transaction has begun is committed.
func TestSignalsDrain(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			url := database(t, true)
			stack.Exec(t, url, "CREATE TABLE jobs (worker text)")
			p := startProxy(t, url)
			idle, busy := stack.Connect(t, p.url), stack.Connect(t, p.url)
			runs(t, busy, "BEGIN; INSERT INTO jobs VALUES ('busy')")
			p.signal(t, sig)
			if err := ended(t, idle); !strings.Contains(fmt.Sprint(err), "57P01") {
				t.Errorf("an idle session got %v", err)
			}
			if status, body := get(t, "http://"+p.admin+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
				t.Errorf("/readyz answers %d: %s", status, body)
			}
			runs(t, busy, "COMMIT")
			p.end(t).expect(t, 0, "drained")
			if got := workers(t, url); got != "busy" {
				t.Errorf("jobs holds %q", got)
			}
		})
	}
}

// A second signal waits for nothing, and leaves nothing running on the server.
func TestSecondSignal(t *testing.T) {
	for second, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		t.Run(second.String(), func(t *testing.T) {
			t.Parallel()
			url := database(t, true)
			stack.Exec(t, url, "CREATE TABLE jobs (worker text)")
			p := startProxy(t, url, "WIREFENCE_DRAIN_GRACE=1h")
			conn := stack.Connect(t, p.url)
			over := make(chan error, 1)
			go func() {
				_, err := conn.Exec(context.Background(), "INSERT INTO jobs SELECT 'query' FROM pg_sleep(600)")
				over <- err
			}()
			becomes(t, url, "1", sleeping)
			p.signal(t, syscall.SIGTERM)
			p.stderr.Await(t, "still accepting")
			p.signal(t, second)
			p.end(t).expect(t, status, "second signal")
			if err := <-over; !strings.Contains(fmt.Sprint(err), "57P01") {
				t.Errorf("the running query got %v", err)
			}
			becomes(t, url, "0", sleeping)
			if got := workers(t, url); got != "" {
				t.Errorf("jobs holds %q", got)
			}
		})
	}
}

const sleeping = "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"

// becomes waits until a query's one value is what is wanted.
func becomes(t *testing.T, url, want, sql string) {
	t.Helper()
	db := stack.DB{Admin: stack.Connect(t, url)}
	db.Becomes(t, want, sql)
}

func runs(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Errorf("%s: %v", sql, err)
	}
}

// workers returns what jobs holds.
func workers(t *testing.T, url string) string {
	t.Helper()
	var all string
	err := stack.Connect(t, url).QueryRow(t.Context(), "SELECT coalesce(string_agg(worker, ' ' ORDER BY worker), '') FROM jobs").Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return all
}
