package fencingtest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// A procedure can't commit behind a check: what follows would be another
// transaction, in which nothing was checked.
func TestCommitInsideAProcedure(t *testing.T) {
	const block = "do $$ begin insert into jobs values (1); commit; insert into jobs values (2); end $$"
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		for _, carrier := range []string{"orders=34", "orders=33"} {
			for _, comment := range []bool{false, true} {
				c := db.connect(t)
				behind := ""
				if comment {
					behind = " /*wirefence.token='" + carrier + "'*/"
				} else {
					c.must("set wirefence.token = '" + carrier + "'")
				}
				want := map[string]string{"orders=34": "2D000", "orders=33": "WF001"}[carrier]
				for _, p := range protocols {
					for _, sql := range []string{"call committing()", block} {
						wantCode(t, p.run(c, sql+behind), want, sql, p.name, carrier, comment)
						if c.TxStatus() != 'I' {
							t.Errorf("%s, %s: transaction status %c", sql, p.name, c.TxStatus())
						}
						db.wantRows(t, 0)
						c.must("begin")
						wantCode(t, p.run(c, sql+behind), want, sql, p.name, carrier, comment)
						c.must("rollback", "select 1")
					}
				}
				db.wantRows(t, 0)
			}
		}
		c := db.connect(t)
		for i, p := range protocols {
			wantCode(t, p.run(c, "call committing()"), "", "unfenced", p.name)
			db.wantRows(t, 2*(i+1))
		}
	})
}

// What the proxy puts around a CALL must not end a transaction of the client's.
func TestCallInPipelines(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		c := db.connect(t)
		for _, test := range []struct {
			sql    []string
			codes  []string
			status string // behind the last Sync
			rows   int
			unsure bool // up to 17 nobody can say in time that a CALL is in a block: refused
		}{
			{[]string{"call proc()", ""}, nil, "I", 1, false},
			{[]string{"call proc()", "call proc()", "insert into jobs values (1)", ""}, nil, "I", 3, false},
			{[]string{"insert into jobs values (1)", "call proc()", ""}, nil, "I", 2, false},
			{[]string{"call proc()", "select 1/0", ""}, []string{"22012"}, "I", 0, false},
			{[]string{"call committing()", "", "insert into jobs values (1)", ""}, []string{"2D000"}, "I", 1, false},
			{[]string{"call committing()", "insert into jobs values (1)", "", "call proc()", ""}, []string{"2D000"}, "I", 1, false},
			{[]string{"begin", "call proc()", ""}, nil, "T", 1, false},
			{[]string{"begin", "", "call proc()", ""}, nil, "T", 1, false},
			{[]string{"begin", "call proc()", "", "rollback", ""}, nil, "I", 0, false},
			{[]string{"begin", "insert into jobs values (1)", "commit and chain", "call proc()", ""}, nil, "T", 2, true},
			{[]string{"begin", "insert into jobs values (1)", "commit and chain", "call proc()", "", "rollback", ""}, nil, "I", 1, true},
			{[]string{"begin", "insert into jobs values (1)", "rollback and chain", "call proc()", "", "rollback", ""}, nil, "I", 0, true},
			{[]string{"begin", "insert into jobs values (1)", "commit", "call proc()", ""}, nil, "I", 2, true},
			{[]string{"call proc()", "begin", "insert into jobs values (1)", "", "rollback", ""}, nil, "I", 0, false},
			{[]string{"call proc()", "commit", "insert into jobs values (1)", ""}, nil, "I", 2, false},
			// What fails behind the CALL, and before the client ends or begins a transaction.
			{[]string{"call proc()", "select 1/0", "commit", ""}, []string{"22012"}, "I", 0, false},
			{[]string{"call committing()", "rollback", "", "insert into jobs values (1)", ""}, []string{"2D000"}, "I", 1, false},
			{[]string{"call proc()", "select 1/0", "begin", "insert into jobs values (1)", "commit", ""}, []string{"22012"}, "I", 0, false},
			{[]string{"call proc()", "commit", "select 1/0", ""}, []string{"22012"}, "I", 1, false},
			{[]string{"call proc()", "commit", "begin", "select 1/0", ""}, []string{"22012"}, "E", 1, false},
			{[]string{"call proc()", "commit", "start transaction", "insert into jobs values (1)", ""}, nil, "T", 2, false},
		} {
			if test.unsure && db.Major < 18 {
				test.codes = []string{"WF006"}
				if test.status == "T" {
					test.status = "E"
				}
				test.rows = min(test.rows, 1)
			}
			c.must("set wirefence.token = 'orders=34'")
			syncs := 0
			for _, sql := range test.sql {
				if sql == "" {
					syncs++
				}
			}
			all := c.exchange(syncs, pipelined(test.sql...)...)
			if got := errorsIn(all); !slices.Equal(got, test.codes) {
				t.Errorf("%q: got %q, want %q", test.sql, got, test.codes)
			}
			if got := status(all); got != test.status {
				t.Errorf("%q: status %s, want %s", test.sql, got, test.status)
			}
			if test.status != "I" {
				c.must("commit")
			}
			if got := db.rows(t); got != test.rows {
				t.Errorf("%q: %d rows, want %d", test.sql, got, test.rows)
			}
			c.must("rollback")
			db.exec(t, "truncate jobs")
		}
	})
}

// Commands that can't run in a transaction, or whose effect outlives the
// session, are refused where a fence is carried, and work where none is.
func TestUnfenceable(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.exec(t, "create table parts (a int) partition by list (a); create table part partition of parts for values in (1)")
		fenced, free := db.connect(t, "wirefence.token", "orders=34"), db.connect(t)
		for i, p := range protocols[:2] {
			// Each is undone by a later one.
			for _, sql := range []string{
				"create index concurrently i on jobs (token)", "drop index concurrently i",
				fmt.Sprintf("create database %s_%d", db.name, i), fmt.Sprintf("drop database %s_%d", db.name, i),
				"alter table parts detach partition part concurrently",
				"alter system set work_mem = '5MB'",
			} {
				wantCode(t, p.run(fenced, sql), "WF006", p.name, sql)
				wantCode(t, p.run(free, sql+" /*wirefence.token='orders=34'*/"), "WF006", p.name, sql)
				wantCode(t, p.run(free, sql), "", p.name, sql)
			}
			db.exec(t, "alter system reset work_mem; ")
			db.exec(t, "alter table parts attach partition part for values in (1)")
			fenced.must("begin", "insert into jobs values (34)")
			wantCode(t, p.run(fenced, "prepare transaction 'procedural'"), "WF006", p.name)
			fenced.must("rollback")
			free.must("begin", "insert into jobs values (0)")
			wantCode(t, p.run(free, "prepare transaction 'procedural'"), "", p.name)
			wantCode(t, p.run(fenced, "commit prepared 'procedural'"), "WF006", p.name)
			wantCode(t, p.run(free, "commit prepared 'procedural'"), "", p.name)
			free.must("begin", "insert into jobs values (0)", "prepare transaction 'procedural'")
			wantCode(t, p.run(fenced, "rollback prepared 'procedural'"), "", p.name)
			for _, sql := range []string{"vacuum cell", "vacuum (full, analyze) cell", "analyze", "reindex table concurrently cell", "cluster", "checkpoint"} {
				wantCode(t, p.run(fenced, sql), "", p.name, sql)
			}
			wantCode(t, p.run(fenced, "insert into jobs values (34)"), "", "the connection lives on")
		}
		// In the middle of a message, nothing of it runs.
		before := db.rows(t)
		fenced.fails("insert into jobs values (1); create index concurrently i on jobs (token)", "WF006")
		all := fenced.exchange(1, append(batch("insert into jobs values (1)"), append(batch("create index concurrently i on jobs (token)"), &pgproto3.Sync{})...)...)
		wantCode(t, firstError(all), "WF006")
		db.wantRows(t, before)
	})
}
