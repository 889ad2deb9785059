package sqltext

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/servers"
)

// forEachServer runs a test on real servers of several versions, in parallel.
func forEachServer(t *testing.T, test func(t *testing.T, major int, conn *pgconn.PgConn)) {
	t.Helper()
	versions := servers.PostgresVersions()
	if testing.Short() && os.Getenv("WIREFENCE_TEST_MORE") == "" { // as in internal/stack, which imports this
		versions = []int{servers.DefaultVersion()}
	}
	for _, major := range versions {
		t.Run("PostgreSQL "+string([]byte{'0' + byte(major/10), '0' + byte(major%10)}), func(t *testing.T) {
			server, err := startOnce(major)
			if err != nil {
				t.Fatal(err)
			}
			ctx := context.Background()
			conn, err := pgconn.Connect(ctx, server.URL("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close(ctx) })
			test(t, major, conn)
		})
	}
}

var (
	startMutex sync.Mutex
	started    = map[int]*servers.Postgres{}
)

// startOnce starts one server of a version for all tests of the package.
func startOnce(major int) (*servers.Postgres, error) {
	startMutex.Lock()
	defer startMutex.Unlock()
	if server := started[major]; server != nil {
		return server, nil
	}
	server, err := servers.StartPostgres(context.Background(), servers.PostgresConfig{Major: major})
	if err == nil {
		started[major] = server
	}
	return server, err
}

func TestMain(m *testing.M) {
	m.Run()
	for _, server := range started {
		server.Close()
	}
}

// run sends a text by a simple query and returns how many statements completed,
// and the SQLSTATE of its error.
func run(t testing.TB, conn *pgconn.PgConn, sql string) (completed int, state string) {
	t.Helper()
	results := conn.Exec(context.Background(), sql)
	var err error
	for results.NextResult() {
		var tag pgconn.CommandTag
		if tag, err = results.ResultReader().Close(); err == nil && tag.String() != "" {
			completed++
		}
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return completed, pgErr.Code
	} else if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return completed, ""
}

func mustRun(t testing.TB, conn *pgconn.PgConn, sql string) {
	t.Helper()
	if err := conn.Exec(context.Background(), sql).Close(); err != nil {
		t.Fatalf("%.100s: %v", sql, err)
	}
}

// scanOne scans a text of one statement.
func scanOne(t testing.TB, sql string) Statement {
	t.Helper()
	var s Scanner
	r := s.Scan([]byte(sql), Options{})
	if len(r.Statements) != 1 {
		t.Fatalf("%s: %d statements", sql, len(r.Statements))
	}
	return r.Statements[0]
}

func TestSplitsAsTheServerDoes(t *testing.T) {
	forEachServer(t, func(t *testing.T, major int, conn *pgconn.PgConn) {
		for _, c := range splits {
			if c.since > major {
				continue
			}
			_, _ = run(t, conn, "ROLLBACK")
			mustRun(t, conn, "SET standard_conforming_strings = "+map[bool]string{false: "on", true: "off"}[c.escapes])
			mustRun(t, conn, "SET client_min_messages = error")
			completed, state := run(t, conn, c.sql)
			if state != "" {
				t.Errorf("%q: the server answers %s", c.sql, state)
				continue
			}
			var s Scanner
			r := s.Scan([]byte(c.sql), Options{EscapeStrings: c.escapes})
			if len(r.Statements) != completed {
				t.Errorf("%q: %d statements, the server completes %d", c.sql, len(r.Statements), completed)
			}
			checkBounds(t, c.sql, r)
		}
	})
}

func checkBounds(t testing.TB, sql string, r *Result) {
	t.Helper()
	last := int32(0)
	for _, st := range r.Statements {
		if st.Start < last || st.End <= st.Start || int(st.End) > len(sql) {
			t.Errorf("%q: bounds %d to %d behind %d", sql, st.Start, st.End, last)
		}
		last = st.End
	}
}
