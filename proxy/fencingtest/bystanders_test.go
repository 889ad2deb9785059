package fencingtest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

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
