package fencingtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
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
	{name: "CALL", sql: "call proc()", effect: countJobs},
	{name: "DO", sql: "do $$ begin insert into jobs values (1); end $$", effect: countJobs},
	{name: "EXECUTE", before: []string{"prepare p_%d as insert into jobs values (1)"}, sql: "execute p_%d", effect: countJobs},
	{name: "COMMIT between", sql: "insert into jobs values (1); commit; insert into jobs values (2)", effect: countJobs, simple: true},
	{name: "cursor", before: []string{"declare c cursor for select * from cell where id = 2", "fetch c"},
		sql: "update cell set n = n + 1 where current of c", effect: countCell, block: true},
	{name: "EXPLAIN ANALYZE", sql: "explain analyze update cell set n = n + 1 where id = 3", effect: countCell},
	{name: "FOR UPDATE", sql: "select * from cell where id = 3 for update", effect: "select xmax::text from cell where id = 3"},
	{name: "nextval", sql: "select nextval('counter'), lastval()", effect: "select last_value::text || is_called from counter"},
	{name: "SELECT INTO", sql: "select 1 as a into made_%d", effect: countMade},
	{name: "CREATE TABLE AS", sql: "create table made_%d as select 1", effect: countMade},
	{name: "COPY of a write", sql: "copy (insert into jobs values (1) returning *) to stdout", effect: countJobs},
	{name: "large object", sql: "select lo_create(0)", effect: "select count(*)::text from pg_largeobject_metadata"},
}

func copyRun(c *client, p protocol, sql string) error {
	switch p.name {
	case "simple":
		return c.copySimple(sql, "1\tx", "2\ty")
	case "extended":
		return c.copyIn("", sql, "1\tx", "2\ty")
	}
	return c.copyIn("copying", sql, "1\tx", "2\ty")
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
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		everyWriter(t, db, isolations)
	})
}

// What the proxy has checked serves the guards of tables, wherever the fence came
// from.
func TestEveryWriterIsFencedOnGuardedTables(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.exec(t, "grant wirefence_bypass to postgres") // who prepares the tests
		for _, table := range []string{"jobs", "cell", "victims"} {
			db.exec(t, "select wirefence.protect('"+table+"', 'orders')")
		}
		everyWriter(t, db, isolations[:2])
		db.exec(t, "revoke wirefence_bypass from postgres")
		c := db.connect(t)
		wantCode(t, c.simple("insert into jobs values (1)"), "WF002")
	})
}

// everyWriter tries every writer with every token in every way.
func everyWriter(t *testing.T, db *database, isolations []string) {
	m := &matrix{t: t, db: db, client: db.connect(t)}
	for _, isolation := range isolations {
		m.isolation = isolation
		m.must("rollback", "set session characteristics as transaction isolation level "+isolation)
		for _, m.token = range tokens {
			for _, m.comment = range []bool{false, true} {
				m.carry()
				for _, m.protocol = range protocols {
					for _, m.block = range []bool{false, true} {
						for _, w := range writers {
							m.try(w)
						}
					}
				}
			}
		}
	}
}

// matrix runs one writer after the other on one connection.
type matrix struct {
	*client
	t         *testing.T
	db        *database
	isolation string
	token     token
	comment   bool
	protocol  protocol
	block     bool
	number    int
}

func (m *matrix) String() string {
	return fmt.Sprintf("%s, %s, %s, in a comment: %v, in a block: %v", m.isolation, m.token.name, m.protocol.name, m.comment, m.block)
}

// carry sets the session variable, or clears it for comments.
func (m *matrix) carry() {
	if m.comment {
		m.must("reset wirefence.token")
	} else {
		m.must("set wirefence.token = '" + m.token.fence + "'")
	}
}

func (m *matrix) try(w writer) {
	if w.block && !m.block || w.simple && m.protocol.name != "simple" || w.since > m.db.Major && m.token.code == "WF004" {
		return
	}
	m.number++
	text := func(sql string) string { return strings.ReplaceAll(sql, "%d", fmt.Sprint(m.number)) }
	if w.setup != "" {
		m.db.exec(m.t, w.setup)
	}
	before := value[string](m.t, m.db, w.effect)
	if m.block {
		m.must("begin")
	}
	for _, sql := range w.before {
		if err := m.protocol.run(m.client, text(sql)); err != nil {
			m.t.Fatalf("%s, %v: %v", w.name, m, err)
		}
	}
	sql, want := text(w.sql), m.token.code
	if m.comment {
		sql += " /*wirefence.token='" + m.token.fence + "'*/"
	}
	if w.since > m.db.Major {
		want = "42601"
	}
	run := w.run
	if run == nil {
		run = func(c *client, p protocol, sql string) error { return p.run(c, sql) }
	}
	wantCode(m.t, run(m.client, m.protocol, sql), want, w.name, m)
	if m.block || w.simple {
		m.must(map[bool]string{true: "commit", false: "rollback"}[want == ""])
	}
	m.compare(w, before, want == "")
}

func (m *matrix) compare(w writer, before string, accepted bool) {
	after := value[string](m.t, m.db, w.effect)
	switch {
	case accepted && after == before:
		m.t.Errorf("%s, %v: nothing was written", w.name, m)
	case !accepted && after != before:
		m.t.Errorf("%s, %v: refused, but %s became %s", w.name, m, before, after)
	}
}

// A notification is sent at the commit: what stands in the queue before a mark
// of the listener's own is all there is.
func TestNotifyIsFenced(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		var got []string
		listener, err := db.dial(t, db.Addr())
		if err != nil {
			t.Fatal(err)
		}
		listener.must("listen news")
		c := db.connect(t)
		for i, carrier := range tokens {
			for _, p := range protocols {
				c.must("set wirefence.token = '" + carrier.fence + "'")
				wantCode(t, p.run(c, fmt.Sprintf("notify news, '%d %s'", i, p.name)), carrier.code, p.name, carrier.name)
				c.must("reset wirefence.token")
				wantCode(t, p.run(c, fmt.Sprintf("select pg_notify('news', '%d %s function') /*wirefence.token='%s'*/", i, p.name, carrier.fence)), carrier.code, p.name, carrier.name)
			}
		}
		listener.must("notify news, 'mark'")
		for _, m := range listener.exchange(1, append(batch("select 1"), &pgproto3.Sync{})...) {
			if m.kind == "NotificationResponse" {
				got = append(got, m.text)
			}
		}
		got = append(got, listener.notes...)
		for _, text := range got {
			if !strings.Contains(text, "0 ") && !strings.Contains(text, "mark") {
				t.Errorf("a refused NOTIFY was sent: %s", text)
			}
		}
		if len(got) != 2*len(protocols)+1 {
			t.Errorf("got %q", got)
		}
	})
}

// Fastpath calls carry what the session carries, and count as writes.
func TestFastpathIsFenced(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		c := db.connect(t)
		for _, isolation := range isolations {
			c.must("set session characteristics as transaction isolation level " + isolation)
			for _, carrier := range tokens {
				c.must("set wirefence.token = '" + carrier.fence + "'")
				for _, function := range []string{"writes(int)", "lo_create(oid)"} {
					effect := map[string]string{"writes(int)": countJobs, "lo_create(oid)": "select count(*)::text from pg_largeobject_metadata"}[function]
					for _, block := range []bool{false, true} {
						before := value[string](t, db, effect)
						if block {
							c.must("begin")
						}
						all := c.exchange(1, db.call(t, function, "0"))
						wantCode(t, firstError(all), carrier.code, function, carrier.name, isolation, block)
						if want := map[bool]string{false: "I", true: map[bool]string{true: "T", false: "E"}[carrier.code == ""]}[block]; status(all) != want {
							t.Errorf("%s, %s: transaction status %s, want %s", function, carrier.name, status(all), want)
						}
						if block {
							c.must("commit")
						}
						if after := value[string](t, db, effect); (after != before) != (carrier.code == "") {
							t.Errorf("%s, %s, %s, in a block: %v: %s became %s", function, carrier.name, isolation, block, before, after)
						}
					}
				}
			}
		}
	})
}
