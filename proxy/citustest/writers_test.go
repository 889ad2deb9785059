package citustest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// writer is a way to write. %d stands for a number that is used once.
type writer struct {
	name, sql, effect string
	alone             bool // no check can share its transaction: it needs a hold
	coordinates       bool // Citus has only the coordinator do it
	rows              []string
}

const (
	countJobs  = "select count(*)::text from jobs"
	sumCells   = "select sum(n)::text from cells"
	sumCopies  = "select sum(n)::text from copies"
	countMade  = "select count(*)::text from pg_class where relname like 'made%'"
	countNotes = "select count(*)::text from notes"
)

var writers = []writer{
	{name: "one shard", sql: "insert into jobs (token) values (1)", effect: countJobs},
	{name: "several shards", sql: "insert into jobs (token) values (1), (1), (1), (1), (1), (1)", effect: countJobs},
	{name: "from a query", sql: "insert into jobs (token) select 1 from generate_series(1, 20)", effect: countJobs},
	{name: "from another table", sql: "insert into jobs (token) select n from cells", effect: countJobs},
	{name: "update of one shard", sql: "update cells set n = n + 1 where id = 1", effect: sumCells},
	{name: "update of all shards", sql: "update cells set n = n + 1", effect: sumCells},
	{name: "upsert", sql: "insert into cells values (1, 0) on conflict (id) do update set n = cells.n + 1", effect: sumCells},
	{name: "delete", sql: "delete from cells where id = (select max(id) from cells)", effect: "select count(*)::text from cells"},
	{name: "reference table", sql: "update copies set n = n + 1", effect: sumCopies},
	{name: "local table", sql: "insert into notes values (1)", effect: countNotes, coordinates: true},
	{name: "CTE", sql: "with x as (update cells set n = n + 1 where id in (2, 3, 4) returning *) select count(*) from x", effect: sumCells},
	{name: "function", sql: "select writes(1)", effect: countJobs},
	{name: "COPY", sql: "copy jobs (token) from stdin", effect: countJobs, rows: []string{"1\n", "1\n", "1\n", "1\n"}},
	{name: "DDL", sql: "create table made_%d (a int)", effect: countMade, coordinates: true},
	{name: "CALL that commits", sql: "call committing(1)", effect: countJobs, alone: true},
	{name: "DO", sql: "do $$ begin insert into jobs (token) values (1); end $$", effect: countJobs, alone: true},
	{name: "CREATE INDEX CONCURRENTLY", sql: "create index concurrently made_%d on cells (n)", effect: countMade, alone: true, coordinates: true},
}

var protocols = []struct {
	name string
	run  func(*stack.Client, string) error
}{
	{"simple", func(c *stack.Client, sql string) error { return c.Simple(sql) }},
	{"extended", func(c *stack.Client, sql string) error { return c.Extended(sql) }},
	{"prepared", func(c *stack.Client, sql string) error { return c.Prepared(sql) }},
}

// ways are how sessions are fenced.
var ways = map[string]time.Duration{"checked": -1, "held": time.Second}

// Each writer writes under the current token and is refused under a stale one, in both protocols,
// checked and held, by the variable and by a comment.
func TestWriters(t *testing.T) {
	c := cluster(t)
	t.Parallel()
	for way, hold := range ways {
		t.Run(way, func(t *testing.T) {
			everywhere(t, c, hold, func(t *testing.T, w *world) { writersThrough(t, w, hold) })
		})
	}
}

func writersThrough(t *testing.T, w *world, hold time.Duration) {
	serial := 0
	// sessions are by carrier and protocol: a comment needs none in the variable.
	for _, carrier := range []string{"variable", "comment"} {
		for _, p := range protocols {
			good, stale := w.fenced(t, map[string]string{"variable": "orders=34"}[carrier]), w.fenced(t, map[string]string{"variable": "orders=33"}[carrier])
			for _, wr := range writers {
				if wr.coordinates && w.atWorker() {
					continue
				}
				name := strings.Join([]string{carrier, p.name, wr.name}, ", ")
				run := func(s *stack.Client, token int) error {
					sql := wr.sql
					if strings.Contains(sql, "%d") {
						serial++
						sql = fmt.Sprintf(sql, serial)
					}
					if carrier == "comment" {
						sql += fmt.Sprintf(" /*wirefence.token='orders=%d'*/", token)
					}
					if wr.rows != nil {
						if p.name != "simple" {
							return s.Batch(append(append(stack.Unnamed(sql), copied(wr.rows)...), &pgproto3.CopyDone{})...)
						}
						s.Send(append(append([]pgproto3.FrontendMessage{&pgproto3.Query{String: sql}}, copied(wr.rows)...), &pgproto3.CopyDone{})...)
						return stack.Err(s.Ready(1))
					}
					return p.run(s, sql)
				}
				before := stack.Value[string](t, w.DB, wr.effect)
				err := run(stale, 33)
				if got := stack.State(err); got != "WF001" && !(wr.alone && hold < 0 && got == "WF006") {
					t.Errorf("%s, stale: %v", name, err)
				}
				if got := stack.Value[string](t, w.DB, wr.effect); got != before {
					t.Errorf("%s: the stale write shows: %s, before it %s", name, got, before)
				}
				err = run(good, 34)
				if wr.alone && hold < 0 {
					stack.WantState(t, err, "WF006", name)
					continue
				}
				stack.WantState(t, err, "", name)
				if got := stack.Value[string](t, w.DB, wr.effect); got == before {
					t.Errorf("%s: the write doesn't show: %s", name, got)
				}
			}
		}
	}
}

func copied(rows []string) (all []pgproto3.FrontendMessage) {
	for _, row := range rows {
		all = append(all, &pgproto3.CopyData{Data: []byte(row)})
	}
	return all
}

// Blocks and pipelines over several shards are refused whole, wherever BEGIN and COMMIT are.
func TestPipelines(t *testing.T) {
	c := cluster(t)
	t.Parallel()
	for way, hold := range ways {
		t.Run(way, func(t *testing.T) { everywhere(t, c, hold, pipelinesThrough) })
	}
}

func pipelinesThrough(t *testing.T, w *world) {
	const insert = "insert into jobs (token) values (33), (33), (33), (33)"
	for i, batch := range [][]string{
		{insert, insert},
		{"begin", insert, insert, "commit"},
		{"begin", insert, "commit", insert, "begin", insert, "commit"},
		{"select 1", insert, "begin", insert, "commit", insert},
		{"begin", "savepoint s", insert, "rollback to s", insert, "commit"},
	} {
		var messages []pgproto3.FrontendMessage
		for _, sql := range batch {
			messages = append(messages, stack.Unnamed(sql)...)
		}
		stale := w.fenced(t, "orders=33")
		if err := stale.Batch(messages...); stack.State(err) != "WF001" || w.rowsOf(t, 33) > 0 {
			t.Errorf("pipeline %d: %v, and %d rows", i, err, w.rowsOf(t, 33))
		}
		simple := w.fenced(t, "orders=33")
		if err := simple.Simple(strings.Join(batch, "; ")); stack.State(err) != "WF001" || w.rowsOf(t, 33) > 0 {
			t.Errorf("text %d: %v, and %d rows", i, err, w.rowsOf(t, 33))
		}
		good := w.fenced(t, "orders=34")
		stack.WantState(t, good.Batch(messages...), "", i)
		if w.rowsOf(t, 33) == 0 {
			t.Errorf("pipeline %d wrote nothing under the current token", i)
		}
		w.Exec(t, "truncate jobs")
	}
}

// A prepared statement that is run often gets a plan without its parameters; its fence counts
// nevertheless.
func TestGenericPlans(t *testing.T) {
	c := cluster(t)
	t.Parallel()
	for way, hold := range ways {
		t.Run(way, func(t *testing.T) { everywhere(t, c, hold, genericPlansThrough) })
	}
}

func genericPlansThrough(t *testing.T, w *world) {
	s := w.fenced(t, "orders=34")
	stack.WantState(t, s.Batch(&pgproto3.Parse{Name: "s", Query: "update cells set n = n + $1 where id = $2"}), "")
	run := func() error {
		return s.Batch(&pgproto3.Bind{PreparedStatement: "s", Parameters: [][]byte{[]byte("1"), []byte("7")}}, &pgproto3.Execute{})
	}
	s.Must("prepare e (int, bigint) as update cells set n = n + $1 where id = $2")
	for range 12 {
		stack.WantState(t, run(), "")
		s.Must("execute e (1, 7)")
	}
	w.Seal(t, "orders", 35)
	stack.WantState(t, run(), "WF001", "a prepared statement behind a takeover")
	stack.WantState(t, s.Simple("execute e (1, 7)"), "WF001", "EXECUTE behind a takeover")
	if n := stack.Value[int](t, w.DB, "select n from cells where id = 7"); n != 24 {
		t.Errorf("%d writes count, of 24", n)
	}
}

// At a worker that has no tokens a fence is refused, and the rest is forwarded.
func TestAProxyBeforeAWorker(t *testing.T) {
	c := cluster(t)
	t.Parallel()
	w := newWorld(t, c, time.Second)
	w.proxy = stack.Proxy(t, c.Workers[0], proxy.Options{DrainTimeout: time.Second})
	w.fenced(t, "").Must("insert into jobs (token) values (1)")
	for carrier, err := range map[string]error{
		"variable": w.fenced(t, "orders=34").Simple("insert into jobs (token) values (34)"),
		"comment":  w.fenced(t, "").Extended("insert into jobs (token) values (34) /*wirefence.token='orders=34'*/"),
	} {
		stack.WantState(t, err, "WF006", carrier)
		if refusal := (*pgconn.PgError)(nil); errors.As(err, &refusal) && !strings.Contains(refusal.Detail, "only the coordinator has the schema") {
			t.Errorf("%s: it isn't said why: %q", carrier, refusal.Detail)
		}
	}
	if w.rowsOf(t, 34) > 0 {
		t.Error("a fenced write was made through a worker")
	}
}
