package securitytest

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A Terminate whose length field promises more than ever comes ends the session as
// the client's socket is closed, whether a loop carries it or, with TLS,
// goroutines: neither a backend with its locks nor a session is left.
func TestOverlongTerminate(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	db := stack.Database(t, w.Postgres)
	stack.Exec(t, w.URL(db), "CREATE TABLE t (a int)")
	for _, mode := range []string{"disable", "require"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			r := stack.Serve(t, proxy.Options{
				Upstream: w.upstream("sslmode=disable"), TLS: w.certificate(t), Registerer: registry, DrainTimeout: time.Second,
			})
			conn, err := connect(t, r.Addr, "user=postgres dbname="+db+" sslmode="+mode)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE t IN SHARE MODE").ReadAll(); err != nil {
				t.Fatal(err)
			}
			client, err := conn.Hijack()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.Conn.Write([]byte("X\x00\x00\x03\xe8")); err != nil {
				t.Fatal(err)
			}
			if err := client.Conn.Close(); err != nil {
				t.Fatal(err)
			}
			becomesZero(t, "backends", backends(t, w, client.PID))
			becomesZero(t, "sessions", func() float64 { return stack.Metric(t, registry, "wirefence_sessions", nil) })
		})
	}
}

// backends counts the server processes with a process id.
func backends(t *testing.T, w *world, pid uint32) func() (n float64) {
	conn := stack.Connect(t, w.admin())
	return func() (n float64) {
		if err := conn.QueryRow(t.Context(), "SELECT count(*)::float8 FROM pg_stat_activity WHERE pid = $1", pid).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func becomesZero(t *testing.T, what string, count func() float64) {
	t.Helper()
	looks := time.NewTicker(10 * time.Millisecond) // nothing tells when a process has ended
	defer looks.Stop()
	for began := time.Now(); count() != 0; <-looks.C {
		if time.Since(began) > stack.Patience {
			t.Fatalf("%v %s are left", count(), what)
		}
	}
}
