package fencingtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/proxy"
)

// checkedReads are what a former holder may not do where reads are checked.
var checkedReads = []string{
	"select * from cell where id in (1, 2)", "table cell", "values (1)", "select 1", "with x as (select * from cell) select * from x",
	"select pure(1), reads(1)", "select * from clean", "explain analyze select pure(1)",
	"copy cell to stdout", "copy (select * from cell) to stdout",
	"select * from cell; select 1", "begin; select * from cell; commit",
}

// uncheckedReads are what it may: they tell nothing of the data.
var uncheckedReads = []string{
	"show work_mem", "set work_mem = '8MB'", "begin", "savepoint a", "rollback to a", "rollback", "begin", "commit",
	"listen x", "unlisten x", "prepare reading as select 1", "deallocate reading", "vacuum cell",
}

// checksReads makes the resource's reads checked.
func (db *database) checksReads(t *testing.T, resource string) {
	t.Helper()
	db.exec(t, "select wirefence.set_resource('"+resource+"', 'reads must be of now', reads => 'check')")
}

func TestReadsAreChecked(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.seal(t, "lines", 34)
		db.checksReads(t, "orders")
		for _, c := range []struct{ variable, comment, want string }{
			{"orders=33", "", "WF001"}, {"orders=34", "", ""}, {"", "", ""}, {"lines=33", "", ""},
			{"lines=33,orders=33", "", "WF001"}, {"orders=33", "orders=34", ""}, {"", "orders=33", "WF001"}, {"nonsense", "", "WF004"},
		} {
			client := db.connect(t)
			client.must("select set_config('wirefence.token', '" + c.variable + "', false)")
			behind := ""
			if c.comment != "" {
				behind = " /*wirefence.token='" + c.comment + "'*/"
			}
			for _, p := range protocols {
				for _, sql := range checkedReads {
					if p.name != "simple" && strings.Contains(sql, ";") {
						continue
					}
					wantCode(t, p.run(client, sql+behind), c.want, p.name, sql, c)
					if client.TxStatus() != 'I' {
						client.must("rollback")
					}
				}
				for _, sql := range uncheckedReads {
					wantCode(t, p.run(client, sql+behind), "", p.name, sql, c)
				}
			}
		}
	})
}

// A check of a read doesn't stand for that of a write, and one transaction takes
// each at most once.
func TestCheckedReadsAndWrites(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		shared.seal(t, "lines", 34)
		shared.checksReads(t, "orders")
		db := shared.counted(t, proxy.Options{})
		c := db.connect(t)
		c.must("set wirefence.token = 'lines=33'", "select 1")
		for _, p := range protocols {
			c.must("begin")
			wantCode(t, p.run(c, "select * from cell"), "", p.name)
			wantCode(t, p.run(c, insert), "WF001", p.name)
			c.must("rollback")
		}
		wantCode(t, c.simple("select 1; "+insert), "WF001")
		wantCode(t, firstError(c.exchange(1, pipelined("select 1", insert, "")...)), "WF001")
		c.must("set wirefence.token = 'orders=34'", "select 1")
		for _, p := range protocols {
			before := db.checks(t)
			c.must("begin")
			for range 3 {
				wantCode(t, p.run(c, "select * from cell"), "", p.name)
			}
			wantCode(t, p.run(c, "insert into jobs values (34)"), "", p.name)
			wantCode(t, p.run(c, "select * from cell"), "", p.name)
			c.must("commit")
			if n := db.checks(t) - before; n != 2 {
				t.Errorf("%s: %d checks", p.name, n)
			}
		}
		db.wantRows(t, len(protocols))
	})
}

// Where nothing asks for it no check stands before a read; a proxy notices that
// something does, and that nothing does any more.
func TestAProxyLearnsThatReadsAreChecked(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		db := shared.counted(t, proxy.Options{})
		c := db.connect(t)
		c.must("set wirefence.token = 'orders=33'", "select 1")
		for round, want := range []string{"", "WF001", ""} {
			if round > 0 {
				db.exec(t, "select wirefence.set_resource('orders', 'why', reads => $1)", []string{"", "check", "pass"}[round])
				// A change through the proxy makes it look anew.
				c.must("/*wirefence.token='orders=34'*/ create or replace function looked() returns int language sql as 'select 1'")
			}
			before := db.checks(t)
			for _, p := range protocols {
				wantCode(t, p.run(c, "select * from cell"), want, p.name, round)
			}
			if n := db.checks(t) - before; (n > 0) != (want != "") {
				t.Errorf("round %d: %d checks", round, n)
			}
		}
	})
}

// What a cursor brings was read when it is fetched.
func TestCursorsAreReads(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.checksReads(t, "orders")
		c := db.connect(t)
		c.must("set wirefence.token = 'orders=34'", "begin", "declare c cursor with hold for select * from cell", "commit", "fetch 1 from c")
		db.seal(t, "orders", 35)
		wantCode(t, c.simple("fetch 1 from c"), "WF001")
		wantCode(t, c.extended("fetch 1 from c"), "WF001")
		wantCode(t, c.simple("begin; declare d cursor for select * from cell"), "WF001")
		c.must("rollback", "close c")
	})
}

// A takeover waits for a reader as for a writer, and ends one that stays.
func TestATakeoverWaitsForCheckedReaders(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.checksReads(t, "orders")
		for i, p := range protocols {
			c := db.connect(t, "user", "app") // a superuser can't be ended
			c.must("set wirefence.token = 'orders="+string(rune('3'))+string(rune('4'+i))+"'", "begin")
			wantCode(t, p.run(c, "select * from cell"), "", p.name)
			db.exec(t, "select wirefence.set_resource('orders', 'why', preempt_after => '50 ms')")
			began := time.Now()
			db.seal(t, "orders", 35+int64(i))
			if waited := time.Since(began); waited < 50*time.Millisecond {
				t.Errorf("%s: the takeover waited %s", p.name, waited)
			}
			if code(p.run(c, "select * from cell")) == "" {
				t.Errorf("%s: a former holder reads on", p.name)
			}
		}
	})
}

// A snapshot from before a takeover is no way to read on.
func TestSnapshotsOfCheckedReads(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.checksReads(t, "orders")
		for _, c := range []struct{ begin, want string }{
			{"begin isolation level repeatable read", ""}, {"begin isolation level serializable", ""}, {"begin read only", ""},
			{"begin isolation level repeatable read, read only", "WF006"}, {"begin isolation level serializable, read only, deferrable", "WF006"},
		} {
			client := db.connect(t)
			client.must("set wirefence.token = 'orders=34'")
			for _, p := range protocols {
				client.must(c.begin)
				wantCode(t, p.run(client, "select * from cell"), c.want, p.name, c.begin)
				client.must("rollback")
			}
		}
	})
}

// A proxy that holds a lease stamps reads as well; in shadow mode it tells of them.
func TestCheckedReadsAreStampedAndShadowed(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		shared.checksReads(t, "orders")
		held := newLease(stale)
		c := shared.leased(t, held, proxy.Options{}).connect(t)
		for _, p := range protocols {
			wantCode(t, p.run(c, "select * from cell"), "WF001", p.name)
		}
		held.set("orders=34")
		for _, p := range protocols {
			wantCode(t, p.run(c, "select * from cell"), "", p.name)
		}
		held.set("")
		for _, p := range protocols {
			wantCode(t, p.run(c, "select * from cell"), "", p.name) // a standby reads
		}
		db := shared.counted(t, proxy.Options{Mode: proxy.Shadow})
		c = db.connect(t)
		c.must("set wirefence.token = '"+stale+"'", "select 1")
		for _, p := range protocols {
			wantCode(t, p.run(c, "select * from cell"), "", p.name)
		}
		if n := db.metric(t, "wirefence_refusals_total", map[string]string{"sqlstate": "WF001", "shadow": "true"}); n < len(protocols) {
			t.Errorf("%d refusals were reported", n)
		}
	})
}

// What stands behind a refused read in a pipeline is skipped, and the session goes
// on.
func TestCheckedReadsInAPipeline(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.checksReads(t, "orders")
		c := db.connect(t)
		c.must("set wirefence.token = '"+stale+"'", "show work_mem")
		all := c.exchange(3,
			parseOf("", "select 1"), bindOf("", ""), executeOf(""), parseOf("", "select 2"), bindOf("", ""), executeOf(""), &pgproto3.Sync{},
			parseOf("", "show work_mem"), bindOf("", ""), executeOf(""), &pgproto3.Sync{},
			&pgproto3.Query{String: "select 3"})
		if got := strings.Join(errorsIn(all), " "); got != "WF001 WF001" {
			t.Errorf("errors %s", got)
		}
		var rows int
		for _, m := range all {
			if m.kind == "DataRow" {
				rows++
			}
		}
		if rows != 1 {
			t.Errorf("%d rows", rows)
		}
	})
}

// A resource in shadow mode lets its writes pass; the proxy counts them, and the
// client notices nothing.
func TestAResourceInShadowMode(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		shared.seal(t, "lines", 34)
		shared.exec(t, "select wirefence.set_resource('orders', 'a trial', mode => 'shadow')")
		db := shared.counted(t, proxy.Options{})
		told := func(state string) int {
			return db.metric(t, "wirefence_refusals_total", map[string]string{"sqlstate": state, "shadow": "true"})
		}
		for _, p := range protocols {
			for fence, state := range map[string]string{stale: "WF001", "orders=99": "WF003"} {
				c := db.connect(t)
				c.must("set wirefence.token = '" + fence + "'")
				before := told(state)
				wantCode(t, p.run(c, insert), "", p.name, fence)
				c.must("begin", insert, insert, "commit")
				wantCode(t, firstError(c.exchange(1, shared.call(t, "writes(int)", "1"))), "")
				if n := told(state) - before; n != 3 {
					t.Errorf("%s %s: %d refusals were reported", p.name, fence, n)
				}
			}
			c := db.connect(t)
			c.must("set wirefence.token = 'orders=33,lines=33'")
			wantCode(t, p.run(c, insert), "WF001", p.name)
		}
		db.wantRows(t, 3*2*4)
		if n := value[int](t, db.database, "select sum(count) from wirefence.history(kinds => '{shadow}', max_rows => 1000)"); n != 3*2*3 {
			t.Errorf("the history tells of %d", n)
		}
		if n := db.metric(t, "wirefence_refusals_total", map[string]string{"shadow": "false"}); n != len(protocols) {
			t.Errorf("%d refusals count as real", n)
		}
		// What passes in a result looks as from PostgreSQL.
		c := db.connect(t)
		c.must("set wirefence.token = '" + stale + "'")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		results, err := c.Exec(ctx, "insert into jobs values (1) returning token; select 2").ReadAll()
		if err != nil || len(results) != 2 || string(results[0].Rows[0][0]) != "1" || string(results[1].Rows[0][0]) != "2" {
			t.Errorf("%v, %v", results, err)
		}
	})
}
