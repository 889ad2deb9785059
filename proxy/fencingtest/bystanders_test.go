package fencingtest

import (
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// DDL of other sessions causes no refusal for clients without a fence, with the schema and
// without.
func TestUnfencedClientsAmongDDL(t *testing.T) {
	bare := bareWorld(t, 15)
	migrated := newWorld(t, 15)
	for _, w := range []*world{bare, migrated} {
		c := w.connect(t)
		c.Must("SET statement_timeout = '20ms'", "CREATE SCHEMA zs", "SET statement_timeout = 0", "SELECT 1; SELECT 2", "BEGIN; CREATE SCHEMA s")
		c.Fails("SELECT 1/0; DROP TABLE x", "22012")
		c.Fails("SELECT 1; DROP TABLE x", "25P02")
		c.Must("ROLLBACK")
		var ddl sync.WaitGroup
		over := make(chan struct{})
		for i := range 2 {
			d := w.connect(t)
			ddl.Go(func() {
				for {
					d.Must(fmt.Sprint("CREATE SCHEMA s", i), fmt.Sprintf("CREATE FUNCTION s%d.f() RETURNS int LANGUAGE sql AS 'SELECT 1'", i), fmt.Sprintf("DROP SCHEMA s%d CASCADE", i))
					select {
					case <-over:
						return
					default:
					}
				}
			})
		}
		for range 200 {
			c.Must("SELECT 1; SELECT 2; SELECT 3")
			stack.WantState(t, c.Extended("SELECT 1"), "")
		}
		close(over)
		ddl.Wait()
	}
}

// The proxy reads no catalog in a client's session, so none of its locks holds clients up.
func TestCatalogLocksHoldNobodyUp(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		free, fenced := w.connect(t), w.fenced(t, "orders=34")
		tx, err := w.Direct(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "LOCK pg_policy"); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*client{free, fenced} {
			c.Patience = 10 * time.Second
			c.Must("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "SELECT 1", "SELECT f()", "DROP FUNCTION f()", "SELECT 1; SELECT 2")
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A client's short statement_timeout does not affect other clients.
func TestShortTimeoutsOfOthers(t *testing.T) {
	w := newWorld(t, 15)
	w.Exec(t, "DO $$ BEGIN FOR i IN 1 .. 2000 LOOP EXECUTE format('CREATE FUNCTION many%s() RETURNS text LANGUAGE sql AS %L', i, 'SELECT ' || quote_literal(repeat('x', 2000))); END LOOP; END $$")
	w = w.own(t, proxy.Options{UnfencedWrites: proxy.Reject})
	for range 5 {
		hasty := w.connect(t, "options", "-c statement_timeout=5ms")
		_ = hasty.Simple("SELECT count(*) FROM pg_class, pg_class AS c")
		c := w.connect(t)
		c.Must("SELECT lower('A')", "SELECT count(*) FROM jobs")
		c.Fails("INSERT INTO jobs (token) VALUES (1)", "WF002")
	}
}

// A batch of 100,000 statements ends with every kind of fence.
func TestLargeBatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 15)
	const statements = 100_000
	for _, carried := range []string{"", "orders=34", "orders=33"} {
		conn, err := pgconn.Connect(t.Context(), stack.URL(w.proxy, w.Name)+"&options=-c%20wirefence.token%3D"+url.QueryEscape(carried))
		if err != nil {
			t.Fatal(err)
		}
		batch := &pgconn.Batch{}
		for i := range statements {
			batch.ExecParams("SELECT $1::int", [][]byte{[]byte(fmt.Sprint(i))}, nil, nil, nil)
		}
		results, err := conn.ExecBatch(t.Context(), batch).ReadAll()
		if carried == "orders=33" {
			stack.WantState(t, err, "WF001")
		} else if err != nil || len(results) != statements || string(results[statements-1].Rows[0][0]) != fmt.Sprint(statements-1) {
			t.Errorf("%q: %d results, %v", carried, len(results), err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
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

// Maintenance commands are fenced too.
func TestStaleMaintenance(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for _, sql := range []string{
			"CLUSTER cell USING cell_pkey", "VACUUM jobs", "ANALYZE jobs", "REINDEX TABLE cell", "REINDEX TABLE CONCURRENTLY cell", "CHECKPOINT",
			"CREATE SUBSCRIPTION s CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false)",
		} {
			c := w.fenced(t, "orders=33")
			c.Fails(sql, "WF001")
			stack.WantState(t, c.Extended(sql), "WF001", sql)
			c = w.fenced(t, "orders=34")
			c.Fails(sql, "")
		}
		w.Exec(t, "ALTER SUBSCRIPTION s SET (slot_name = NONE)")
		w.fenced(t, "orders=34").Must("DROP SUBSCRIPTION s")
		if n := w.count(t, "SELECT count(*) FROM pg_subscription"); n != 0 {
			t.Errorf("%d subscriptions", n)
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
