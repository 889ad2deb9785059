package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// Case 20 on the process itself: what a transaction has begun is committed, in
// whatever state the session is; what is idle is told to go.
func TestSignalsDrain(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			url := database(t, true)
			stack.Exec(t, url, "CREATE TABLE jobs (worker text)")
			p := startProxy(t, url)
			// First: a slot is made when the transactions of before have ended.
			streams := []<-chan error{replicate(t, p.url, "true"), replicate(t, p.url, "database")}
			listening, held := stack.Connect(t, p.url), stack.Connect(t, p.url)
			runs(t, listening, "LISTEN news")
			runs(t, held, "DECLARE held CURSOR WITH HOLD FOR SELECT generate_series(1, 9)")
			cursor, copying := stack.Connect(t, p.url), newCopy(t, p.url)
			runs(t, cursor, "BEGIN; INSERT INTO jobs VALUES ('cursor'); DECLARE c CURSOR FOR SELECT generate_series(1, 9)")

			p.signal(t, sig)
			for name, conn := range map[string]*pgx.Conn{"that listens": listening, "with a held cursor": held} {
				if err := ended(t, conn); !strings.Contains(fmt.Sprint(err), "57P01") {
					t.Errorf("a session %s got %v", name, err)
				}
			}
			for _, stream := range streams {
				if err := <-stream; !strings.Contains(fmt.Sprint(err), "57P01") {
					t.Errorf("a replication stream got %v", err)
				}
			}
			if status, body := get(t, "http://"+p.admin+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
				t.Errorf("/readyz answers %d: %s", status, body)
			}
			copying.write("copy\n")
			if err := copying.end(); err != nil {
				t.Errorf("a COPY ends with %v", err)
			}
			runs(t, cursor, "FETCH 3 FROM c")
			runs(t, cursor, "COMMIT")
			p.end(t).expect(t, 0, "drained")
			if got := workers(t, url); got != "copy cursor" {
				t.Errorf("jobs holds %q", got)
			}
		})
	}
}

// During the grace /readyz sends no more clients, but those who come are served.
func TestDrainGrace(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	p := startProxy(t, url, "WIREFENCE_DRAIN_GRACE=3s")
	old := stack.Connect(t, p.url)
	p.signal(t, syscall.SIGTERM)
	p.stderr.Await(t, "still accepting")
	if status, body := get(t, "http://"+p.admin+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
		t.Errorf("/readyz answers %d: %s", status, body)
	}
	runs(t, old, "SELECT 1")
	runs(t, stack.Connect(t, p.url), "SELECT 1")
	p.end(t).expect(t, 0, "drained")
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

// copyIn is a COPY into jobs that has begun.
type copyIn struct {
	data *net.TCPConn
	over chan error
}

// newCopy begins a COPY, whose data comes by a connection of the test's own.
func newCopy(t *testing.T, url string) *copyIn {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	data, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	source, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn := stack.Connect(t, url)
	c := &copyIn{data, make(chan error, 1)}
	go func() {
		_, err := conn.PgConn().CopyFrom(context.Background(), source, "COPY jobs FROM STDIN")
		c.over <- err
	}()
	becomes(t, url, "1", "SELECT count(*)::text FROM pg_stat_progress_copy WHERE datname = current_database()")
	return c
}

func (c *copyIn) write(line string) { _, _ = c.data.Write([]byte(line)) }

func (c *copyIn) end() error {
	_ = c.data.Close()
	return <-c.over
}

// replicate begins a physical stream ("true") or a logical one ("database"), and
// tells how it ends.
func replicate(t *testing.T, url, kind string) <-chan error {
	t.Helper()
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["replication"] = kind
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	results, err := conn.Exec(t.Context(), "IDENTIFY_SYSTEM").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	start := "START_REPLICATION PHYSICAL " + string(results[0].Rows[0][2])
	if kind == "database" {
		slot := fmt.Sprintf("slot_%d", conn.PID())
		if _, err := conn.Exec(t.Context(), "CREATE_REPLICATION_SLOT "+slot+" TEMPORARY LOGICAL test_decoding").ReadAll(); err != nil {
			t.Fatal(err)
		}
		start = "START_REPLICATION SLOT " + slot + " LOGICAL 0/0"
	}
	over := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		over <- stream(conn, start, begun)
	}()
	<-begun
	return over
}

// stream reads a replication stream to its end and returns what it was.
func stream(conn *pgconn.PgConn, start string, begun chan<- struct{}) error {
	conn.Frontend().SendQuery(&pgproto3.Query{String: start})
	if err := conn.Frontend().Flush(); err != nil {
		close(begun)
		return err
	}
	for {
		msg, err := conn.ReceiveMessage(context.Background())
		switch msg := msg.(type) {
		case *pgproto3.CopyBothResponse:
			close(begun)
		case *pgproto3.ErrorResponse:
			close(begun)
			return pgconn.ErrorResponseToPgError(msg)
		}
		if err != nil {
			return err
		}
	}
}
