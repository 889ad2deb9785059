package fencingtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// writer is a way to write. In its texts %d stands for a number that is used
// once.
type writer struct {
	name   string
	since  int    // the first version that knows it
	setup  string // what must be there, written past the proxy
	before []string
	sql    string
	effect string // a query whose value changes with the write
	block  bool   // works in a transaction block alone
	simple bool   // several statements
	alone  bool   // outside of a block no check can share its transaction
	within string // the SQLSTATE with which it fails in a block
	stores bool   // what it stores runs later: a fence in a comment isn't handed on
	until  int    // the first version whose READ ONLY transactions refuse it
	run    func(c *client, p protocol, sql string) error
}

const (
	countJobs = "select count(*)::text from jobs"
	countCell = "select sum(n)::text from cell"
	countMade = "select count(*)::text from pg_class where relname like 'made%'"
)

var writers = []writer{
	{name: "INSERT", sql: "insert into jobs values (1)", effect: countJobs},
	{name: "UPDATE", sql: "update cell set n = n + 1 where id = 1", effect: countCell},
	{name: "DELETE", setup: "insert into victims values (1)", sql: "delete from victims", effect: "select count(*)::text from victims"},
	{name: "MERGE", since: 15, sql: "merge into cell using (values (1)) v(a) on id = a when matched then update set n = n + 1", effect: countCell},
	{name: "COPY", sql: "copy jobs from stdin", effect: countJobs, run: copyRun},
	{name: "TRUNCATE", setup: "insert into victims values (1)", sql: "truncate victims", effect: "select count(*)::text from victims"},
	{name: "CREATE TABLE", sql: "create table made_%d (a int)", effect: countMade},
	{name: "ALTER TABLE", sql: "alter table wide add column c_%d int", effect: "select count(*)::text from pg_attribute where attrelid = 'wide'::regclass"},
	{name: "CTE", sql: "with x as (insert into jobs values (1) returning *) select * from x", effect: countJobs},
	{name: "function", sql: "select writes(1)", effect: countJobs},
	{name: "view", sql: "table dirty", effect: countJobs},
	{name: "CALL", sql: "call proc()", effect: countJobs, alone: true},
	{name: "DO", sql: "do $$ begin insert into jobs values (1); end $$", effect: countJobs, alone: true},
	{name: "CALL that commits", sql: "call committing()", effect: countJobs, alone: true, within: "2D000"},
	{name: "DO that commits", sql: "do $$ begin insert into jobs values (1); commit; insert into jobs values (2); end $$", effect: countJobs, alone: true, within: "2D000"},
	{name: "CREATE INDEX CONCURRENTLY", sql: "create index concurrently made_%d on cell (n)", effect: countMade, alone: true, within: "25001"},
	{name: "ANALYZE", sql: "analyze cell", effect: "select coalesce(max(xmin::text::bigint), 0)::text from pg_statistic where starelid = 'cell'::regclass", alone: true},
	{name: "EXECUTE", before: []string{"prepare p_%d as insert into jobs values (1)"}, sql: "execute p_%d", effect: countJobs},
	{name: "COMMIT between", sql: "insert into jobs values (1); commit; insert into jobs values (2)", effect: countJobs, simple: true},
	{name: "cursor", before: []string{"declare c cursor for select * from cell where id = 2", "fetch c" + behindGood},
		sql: "update cell set n = n + 1 where current of c", effect: countCell, block: true},
	{name: "EXPLAIN ANALYZE", sql: "explain analyze update cell set n = n + 1 where id = 3", effect: countCell},
	{name: "FOR UPDATE", sql: "select * from cell where id = 3 for update", effect: "select xmax::text from cell where id = 3"},
	{name: "nextval", sql: "select nextval('counter'), lastval()", effect: "select last_value::text || is_called from counter"},
	{name: "SELECT INTO", sql: "select 1 as a into made_%d", effect: countMade},
	{name: "CREATE TABLE AS", sql: "create table made_%d as select 1", effect: countMade},
	{name: "COPY of a write", sql: "copy (insert into jobs values (1) returning *) to stdout", effect: countJobs},
	{name: "large object", sql: "select lo_create(0)", effect: "select count(*)::text from pg_largeobject_metadata", until: 16},
	// These do not look like writes.
	{name: "STABLE function", sql: "select calm(1)", effect: countJobs},
	{name: "operator", sql: "select 1 #|# 2", effect: countJobs},
	{name: "domain", sql: "select 'x'::noted", effect: countJobs},
	{name: "foreign table", sql: "insert into far values (1)", effect: countJobs},
	{name: "deferred trigger", sql: "insert into later values (1)", effect: countJobs},
	{name: "cursor WITH HOLD", sql: "declare held_%d cursor with hold for select writes(1)", effect: countJobs, stores: true},
}

// foreign makes a foreign table of jobs, whose server connects past the proxy.
func (w *world) foreign(t *testing.T) {
	t.Helper()
	w.Exec(t, "create extension postgres_fdw", fmt.Sprintf("create server self foreign data wrapper postgres_fdw options (host '127.0.0.1', port '%d', dbname '%s', options '-c wirefence.token=orders=34')", w.Port, w.Name),
		"create user mapping for public server self options (user 'postgres')", "create foreign table far (token bigint, note text) server self options (table_name 'jobs')")
}

func copyRun(c *client, p protocol, sql string) error {
	switch p.name {
	case "simple":
		return c.CopyIn(sql, "1\tx", "2\ty")
	case "extended":
		return c.CopyInExtended("", sql, "1\tx", "2\ty")
	}
	return c.CopyInExtended("copying", sql, "1\tx", "2\ty")
}

// token is what a client presents while 34 is the current one.
type token struct{ name, fence, code string }

var tokens = []token{
	{"current", "orders=34", ""},
	{"stale", "orders=33", "WF001"},
	{"malformed", "orders", "WF004"},
}

var isolations = []string{"read committed", "repeatable read", "serializable"}

func TestEveryWriterIsFenced(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		if w.busy {
			everyWriter(t, w, isolations[:2], false)
		} else {
			everyWriter(t, w, isolations, false)
		}
	})
}

// The guards of tables accept what the proxy has checked. They do not see its holds, so there
// the proxy checks a fence in a comment.
func TestEveryWriterIsFencedOnGuardedTables(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		w.Exec(t, "set wirefence.token = 'orders=34'") // of who prepares the tests
		for _, table := range []string{"jobs", "cell", "victims"} {
			w.Exec(t, "select wirefence.protect('"+table+"', 'orders')")
		}
		everyWriter(t, w, isolations[:2], true)
		c := w.connect(t)
		stack.WantState(t, c.Simple("insert into jobs values (1)"), "WF002")
	})
}

// everyWriter tries every writer with every token in every way, where time is short in one
// isolation level each, and in make test in a quarter of them.
func everyWriter(t *testing.T, w *world, isolations []string, guarded bool) {
	w.foreign(t)
	m, every := &matrix{t: t, w: w, guarded: guarded}, len(isolations)
	if stack.Alone() {
		every = 4
	}
	for i, isolation := range isolations {
		for j, token := range tokens {
			for k, comment := range []bool{false, true} {
				if testing.Short() && (i+j+k)%every != 0 {
					continue
				}
				m.isolation, m.token, m.comment = isolation, token, comment
				m.client = w.connect(t)
				m.Must("set session characteristics as transaction isolation level " + m.isolation)
				m.carry(m.token.fence)
				for _, m.protocol = range protocols {
					for _, m.block = range []bool{false, true} {
						for _, wr := range writers {
							m.try(wr)
						}
					}
				}
				m.Close()
			}
		}
	}
	if m.unchecked*2 < m.held {
		t.Errorf("of %d statements in sessions that hold %d were not checked", m.held, m.unchecked)
	}
}

// matrix runs one writer after the other on one connection.
type matrix struct {
	*client
	t         *testing.T
	w         *world
	guarded   bool
	isolation string
	token     token
	comment   bool
	protocol  protocol
	block     bool
	number    int

	held      int // statements in a session that holds
	unchecked int // of these without a check
}

func (m *matrix) String() string {
	return fmt.Sprintf("%s, %s, %s, in a comment: %v, in a block: %v", m.isolation, m.token.name, m.protocol.name, m.comment, m.block)
}

// carry sets the session variable, or clears it for comments.
func (m *matrix) carry(fence string) {
	if m.comment {
		fence = ""
	}
	m.Must("set wirefence.token = '" + fence + "'")
}

// behind is the comment that carries the fence.
func (m *matrix) behind() string {
	if !m.comment {
		return ""
	}
	return " /*wirefence.token='" + m.token.fence + "'*/"
}

// mayHold reports whether the session can hold its fence.
func (m *matrix) mayHold() bool {
	return m.w.busy && m.token.code == "" && !(m.guarded && m.comment)
}

// want is the SQLSTATE that a writer ends with, "" for success.
func (m *matrix) want(wr writer) string {
	switch {
	case m.comment && m.token.code == "WF004":
		return "WF004"
	case wr.since > m.w.Major && (m.protocol.name == "simple" || m.token.code == ""):
		return "42601"
	case wr.stores && m.comment, wr.alone && !m.block && m.token.code == "" && !m.mayHold():
		return "WF006"
	case m.block && m.token.code == "":
		return wr.within
	}
	return m.token.code
}

func (m *matrix) try(wr writer) {
	if wr.block && !m.block || wr.simple && m.protocol.name != "simple" {
		return
	}
	m.number++
	text := func(sql string) string { return strings.ReplaceAll(sql, "%d", fmt.Sprint(m.number)) }
	if wr.setup != "" {
		m.w.Exec(m.t, wr.setup)
	}
	before := stack.Value[string](m.t, m.w.DB, wr.effect)
	if m.mayHold() {
		m.w.warm(m.behind(), m.client)
	}
	if m.block {
		m.Must("begin")
	}
	if wr.before != nil {
		// They run under the current token.
		m.carry("orders=34")
		for _, sql := range wr.before {
			if err := m.protocol.run(m.client, text(sql)); err != nil {
				m.t.Fatalf("%s, %v: %v", wr.name, m, err)
			}
		}
		m.carry(m.token.fence)
	}
	run := wr.run
	if run == nil {
		run = func(c *client, p protocol, sql string) error { return p.run(c, sql) }
	}
	want, checks := m.want(wr), m.w.checks(m.t)
	stack.WantState(m.t, run(m.client, m.protocol, text(wr.sql)+m.behind()), want, wr.name, m)
	if m.mayHold() && wr.before == nil && want == "" {
		m.held++
		if m.w.checks(m.t) == checks {
			m.unchecked++
		}
	}
	if m.block || wr.simple {
		m.Must(map[bool]string{true: "commit", false: "rollback"}[want == ""])
	}
	if m.TxStatus() != 'I' {
		m.t.Errorf("%s, %v: transaction status %c", wr.name, m, m.TxStatus())
	}
	m.compare(wr, before, want == "")
}

func (m *matrix) compare(wr writer, before string, accepted bool) {
	after := stack.Value[string](m.t, m.w.DB, wr.effect)
	switch {
	case accepted && after == before:
		m.t.Errorf("%s, %v: nothing was written", wr.name, m)
	case !accepted && after != before:
		m.t.Errorf("%s, %v: refused, but %s became %s", wr.name, m, before, after)
	}
}

// A FunctionCall runs under the session's fence: outside of a block under a hold, in one behind a
// check. Once a client has sent one, that check is right behind BEGIN, where libpq's functions for
// large objects have nothing else.
func TestFastpathIsFenced(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		c := w.connect(t)
		c.Must("set wirefence.token = 'orders=34'", "begin")
		stack.WantState(t, stack.Err(c.Exchange(1, w.call(t, "lo_create(oid)", "0"))), "WF006", "the first of a session, with nothing before it")
		c.Must("rollback", "begin", "select 1")
		stack.WantState(t, stack.Err(c.Exchange(1, w.call(t, "lo_create(oid)", "0"))), "", "behind a check")
		c.Must("rollback")
		for i, isolation := range isolations {
			c.Must("set session characteristics as transaction isolation level " + isolation)
			for j, carrier := range tokens {
				if stack.Alone() && (i+j)%len(isolations) != 0 {
					continue
				}
				c.Must("set wirefence.token = '" + carrier.fence + "'")
				for _, function := range []string{"writes(int)", "lo_create(oid)"} {
					effect := map[string]string{"writes(int)": countJobs, "lo_create(oid)": "select count(*)::text from pg_largeobject_metadata"}[function]
					for _, block := range []bool{false, true} {
						want := carrier.code
						if !block && !w.busy && want == "" {
							want = "WF006"
						}
						before := stack.Value[string](t, w.DB, effect)
						var err error
						if block {
							err = c.Simple("begin")
						}
						if err == nil {
							err = stack.Err(c.Exchange(1, w.call(t, function, "0")))
						}
						stack.WantState(t, err, want, function, carrier.name, isolation, block)
						if block {
							c.Must("commit")
						}
						if after := stack.Value[string](t, w.DB, effect); (after != before) != (want == "") {
							t.Errorf("%s, %s, %s, in a block: %v: %s became %s", function, carrier.name, isolation, block, before, after)
						}
					}
				}
			}
		}
	})
}
