package fencingtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// withQueue is the world with a queue whose rows judge: job 1 and 2 run under the claims 10 and
// 20, and results is guarded by them.
func (w *world) withQueue(t testing.TB) *world {
	t.Helper()
	w.Exec(t, `CREATE TABLE queue (id bigint PRIMARY KEY, running boolean NOT NULL, claim bigint);
		INSERT INTO queue VALUES (1, true, 10), (2, true, 20);
		CREATE TABLE results (job_id bigint);
		SELECT wirefence.declare_rows('job', 'queue', '{id}', 'claim', 'running')`)
	return w
}

// Whatever carries them and however a statement is sent, claims are checked in each transaction
// and never held.
//
// Evidence: a-worker-that-lost-its-row-writes-nothing
func TestRowFences(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		w.withQueue(t)
		const write = "INSERT INTO jobs (token) VALUES (%d)"
		for _, p := range protocols {
			c := w.begins(t)
			c.Must("SET wirefence.token = 'job(1)=10,orders=34'")
			for range 5 {
				stack.WantState(t, p.run(c, fmt.Sprintf(write, 34)), "", p.name, "variable")
			}
			if n := w.held(t); n != 0 {
				t.Errorf("%s: %d locks are held", p.name, n)
			}
			c.Must("SET wirefence.token = 'job(1)=11'")
			stack.WantState(t, p.run(c, fmt.Sprintf(write, 33)), "WF001", p.name, "stale variable")
			stack.WantState(t, p.run(c, "SELECT 1"), "WF001", p.name, "stale read")
			c.Must("SET wirefence.token = 'job(1)=10'")
			for _, sql := range []string{"CALL committing()", "VACUUM jobs"} {
				stack.WantState(t, p.run(c, sql), "WF006", p.name, "what needs a hold", sql)
			}
			c.Must("BEGIN")
			c.Fails("CALL committing()", "2D000")
			c.Must("ROLLBACK")
			c.Must("SET wirefence.token = ''")
			stack.WantState(t, p.run(c, fmt.Sprintf(write, 34)+" /*wirefence.token='job(1)=10,job(2)=20'*/"), "", p.name, "comment")
			stack.WantState(t, p.run(c, fmt.Sprintf(write, 33)+" /*wirefence.token='job(1)=10,job(2)=21'*/"), "WF001", p.name, "stale comment")
			stack.WantState(t, p.run(c, fmt.Sprintf(write, 33)+" /*wirefence.token='job(1)=10,job(1)=11'*/"), "WF004", p.name, "two claims")
			stack.WantState(t, p.run(c, fmt.Sprintf(write, 33)+" /*wirefence.token='none(1)=1'*/"), "WF008", p.name, "unknown class")
			c.Must("BEGIN", "SET LOCAL wirefence.token = 'job(1)=10'")
			stack.WantState(t, p.run(c, fmt.Sprintf(write, 34)), "", p.name, "SET LOCAL")
			c.Must("COMMIT", "BEGIN", "SET LOCAL wirefence.token = 'job(2)=10'")
			stack.WantState(t, p.run(c, fmt.Sprintf(write, 33)), "WF001", p.name, "stale SET LOCAL")
			c.Must("ROLLBACK")
		}
		w.wantRowsOf(t, 33, 0)
	})
}

// A check in a READ ONLY transaction locks no row, so it must not count for what follows the
// end of READ ONLY in the same message or batch.
func TestRowFencesBehindReadOnly(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.withQueue(t)
		for _, opens := range []string{"SET transaction_read_only = DEFAULT", "RESET transaction_read_only"} {
			for way, run := range map[string]func(c *client, statements ...string) error{
				"text":  func(c *client, s ...string) error { return c.Simple(strings.Join(s, "; ")) },
				"batch": func(c *client, s ...string) error { return c.Batch(pipelined(append(s, "")...)...) },
			} {
				c := w.connect(t)
				c.Must("SET wirefence.token = 'job(1)=10'", "BEGIN READ ONLY")
				w.Exec(t, "BEGIN", "LOCK TABLE cell")
				over := make(chan error, 1)
				go func() { over <- run(c, opens, "SELECT FROM cell", insertOf(33), "COMMIT") }()
				stack.Eventually(t, "it waits, or was refused", func() bool {
					return len(over) > 0 || w.count(t, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'cell'::regclass") > 0
				})
				if len(over) == 0 {
					_, err := stack.Connect(t, w.URL(w.Name)).Exec(t.Context(), "SELECT FROM queue WHERE id = 1 FOR NO KEY UPDATE NOWAIT")
					stack.WantState(t, err, "55P03", opens, way, "a take")
				}
				w.Exec(t, "COMMIT")
				if err := <-over; err != nil && stack.State(err) != "0A000" {
					t.Errorf("%s, %s: %v", opens, way, err)
				}
			}
		}
	})
}

// Behind a transaction pooler, comments and SET LOCAL carry claims.
func TestRowFencesBehindAPooler(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.withQueue(t)
		w = w.own(t, proxy.Options{Upstream: "postgres://" + pgbouncer(t, w.Addr(), one) + "/"})
		c, other := w.begins(t), w.begins(t)
		for range 3 {
			c.Must("INSERT INTO jobs (token) VALUES (34) /*wirefence.token='job(1)=10'*/")
			other.Fails("INSERT INTO jobs (token) VALUES (33) /*wirefence.token='job(1)=11'*/", "WF001")
			c.Must("BEGIN", "SET LOCAL wirefence.token = 'job(1)=10'", "INSERT INTO jobs (token) VALUES (34)", "COMMIT")
			other.Must("BEGIN", "SET LOCAL wirefence.token = 'job(1)=11'")
			other.Fails("INSERT INTO jobs (token) VALUES (33)", "WF001")
			other.Must("ROLLBACK", "INSERT INTO jobs (token) VALUES (34)")
		}
		w.wantRowsOf(t, 33, 0)
	})
}

// 10,000 claims fit into one comment.
func TestAFenceOfManyRows(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.withQueue(t)
		w.Exec(t, "INSERT INTO queue SELECT n, true, n FROM generate_series(3, 10002) AS n")
		text := ""
		for n := 3; n < 10003; n++ {
			text += fmt.Sprintf("job(%d)=%d,", n, n)
		}
		text = text[:len(text)-1]
		for _, p := range protocols {
			c := w.begins(t)
			stack.WantState(t, p.run(c, "INSERT INTO jobs (token) VALUES (34) /*wirefence.token='"+text+"'*/"), "", p.name)
			stack.WantState(t, p.run(c, "INSERT INTO jobs (token) VALUES (33) /*wirefence.token='"+text+"1'*/"), "WF001", p.name)
		}
		w.wantRowsOf(t, 33, 0)
	})
}
