package fencingtest

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Two sessions that hold can both advance the resource, without waiting for each other's hold.
func TestSessionsThatHoldAdvance(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		sessions := []*client{w.fenced(t, "used=1"), w.fenced(t, "used=1")}
		w.warm("", sessions...)
		over := make(chan error, 2)
		for _, c := range sessions {
			go func() {
				err := c.Simple("SET wirefence.token = 'used=2'")
				if err == nil {
					err = c.Simple("INSERT INTO jobs (token) VALUES (2)")
				}
				over <- err
			}()
		}
		for range sessions {
			stack.WantState(t, <-over, "")
		}
	})
}

// A client sees nothing of its holds: no notice, no row, no error.
func TestHoldsAreSilent(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		c := w.fenced(t, "orders=34")
		c.Must("SET client_min_messages = debug1")
		for range 3 {
			w.warm("", c)
			c.Must("BEGIN", "SAVEPOINT s")
			c.Fails("SELECT 1/0", "22012")
			c.Must("ROLLBACK TO s", "COMMIT")
			c.Fails("LOCK TABLE jobs", "25P01")
			stack.Eventually(t, "DECLARE outside of a transaction runs under a hold", func() bool {
				return stack.State(c.Simple("DECLARE c CURSOR FOR SELECT 1")) == "25P01" // behind a check it is in one
			})
			c.Must("BEGIN")
			c.Fails("SELECT 1/0", "22012")
			overdue(t)
			c.Must("ROLLBACK")
			stack.Eventually(t, "nothing is held", func() bool { return w.held(t) == 0 })
		}
		for _, m := range c.All() {
			if m.Type == 'N' && (strings.Contains(string(m.Body), "advisory") || strings.Contains(string(m.Body), "own a lock")) {
				t.Errorf("a notice came: %s", m)
			}
		}
	})
}

// gated is a connection that isn't read before it is opened.
type gated struct {
	net.Conn
	open chan struct{}
}

func (g *gated) Read(b []byte) (int, error) {
	<-g.open
	return g.Conn.Read(b)
}

// A client that pipelines and reads slowly keeps its hold: a takeover does not end it as one of
// a frozen proxy.
func TestSlowReaders(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.preempt(t, nil)
		g := &gated{stack.Raw(t, w.proxy), make(chan struct{})}
		c := &client{Client: stack.NewClient(t, g)}
		c.Write(stack.Startup(pgproto3.ProtocolVersion30, w.Name, "user", "app", "options", "-c wirefence.token=orders=34"))
		const queries = 10
		var all []pgproto3.FrontendMessage
		for range queries {
			all = append(all, &pgproto3.Query{String: "SELECT repeat('x', 1000) FROM generate_series(1, 5000)"})
		}
		written := make(chan struct{})
		go func() {
			defer close(written)
			c.Send(all...)
		}()
		// Before the buffers on the way are full, it waits for moments only, and queries end.
		stack.Eventually(t, "the server waits for the client", func() bool {
			return w.count(t, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND wait_event = 'ClientWrite' AND clock_timestamp() - query_start > interval '500 ms' AND datname = current_database()") == 1
		})
		r := w.rival(t)
		r.waits(t, "slow reader")
		end := time.Now().Add(time.Second)
		stack.Eventually(t, "the rival has looked round", func() bool { return time.Now().After(end) })
		close(g.open)
		<-written
		c.Ready(1)
		states := answers(c, nil, queries)
		r.succeeds(t)
		for i, state := range states {
			if state != "" && state != "WF001" {
				t.Errorf("query %d got %q", i, state)
			}
		}
		if states[0] != "" || c.Ended() {
			t.Errorf("the session was ended: %q", states)
		}
	})
}

// In a session that holds, an error in a prepared text has PostgreSQL's own position.
func TestPositionsInPreparedTexts(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w = w.own(t, proxy.Options{Hold: 5 * time.Second})
		position := func(c *client) int32 {
			c.Must("SELECT 1", "SELECT 2") // the second takes the hold
			c.Must("CREATE TEMP TABLE gone (i bigint)", "PREPARE p(bigint) AS SELECT i + $1 AS a_rather_long_name_for_a_column, i FROM gone", "DROP TABLE gone")
			all, err := c.Query("EXECUTE p(1)")
			if err == nil {
				t.Fatal("there is a table")
			}
			for _, m := range all {
				if m.Type == 'E' {
					return m.Backend().(*pgproto3.ErrorResponse).Position
				}
			}
			return -1
		}
		direct := position(w.connectTo(t, w.Addr()))
		if proxied := position(w.fenced(t, "orders=34")); proxied != direct || direct == 0 {
			t.Errorf("position %d, direct %d", proxied, direct)
		}
	})
}

// Under a hold the proxy does not change the client's text. A machine that pauses in between
// ends the hold, so it is tried again.
func TestTextsUnderAHold(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		c := w.fenced(t, "orders=34")
		stack.Eventually(t, "pg_stat_activity shows the text", func() bool {
			const sql = "SELECT query FROM pg_stat_activity WHERE pid = pg_backend_pid()"
			c.Must("SELECT 1", "SELECT 2", "SELECT 3")
			return c.Value(sql) == sql
		})
		stack.Eventually(t, "pg_cursors shows the text", func() bool {
			const sql = "DECLARE c CURSOR FOR SELECT 1"
			c.Must("SELECT 1", "SELECT 2", "SELECT 3", "BEGIN", sql)
			got := c.Value("SELECT statement FROM pg_cursors WHERE name = 'c'")
			c.Must("COMMIT")
			return got == sql
		})
	})
}
