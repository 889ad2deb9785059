package fencingtest

import (
	"bytes"
	"context"
	"testing"
)

// reads pass whatever the session carries. {c} is where a comment may stand.
var reads = []string{
	"select 1", "select * from cell where id in (1, 2)", "table cell", "values (1)",
	"select pure(1), reads(1)", "select * from clean", "select count(*) from jobs",
	"show work_mem", "show all", "select current_setting('wirefence.token', true)",
	"explain update cell set n = 1", "explain analyze select pure(1)",
	"copy cell to stdout", "copy (select pure(1)) to stdout",
	"set work_mem = '8MB'", "reset work_mem", "set names 'utf8'",
	"begin", "savepoint a", "declare c cursor for select * from cell", "fetch c", "move c", "close c",
	"rollback to a", "release a", "commit", "begin", "rollback", "start transaction read only", "end",
	"listen x", "unlisten x", "prepare reading as select 1", "deallocate reading", "discard plans",
	"analyze cell", "vacuum cell", "reindex table cell", "checkpoint",
}

func TestReadsPassAStaleToken(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		for _, comment := range []bool{false, true} {
			c := db.connect(t)
			behind := " /*wirefence.token='" + stale + "'*/"
			c.must("set wirefence.token = '" + stale + "'")
			if comment {
				c.must("set wirefence.token = 'orders=34'")
			} else {
				behind = ""
			}
			for _, p := range protocols {
				for _, sql := range reads {
					wantCode(t, p.run(c, sql+behind), "", p.name, sql, comment)
				}
				wantCode(t, p.run(c, insert+behind), "WF001", p.name)
			}
			var got bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			_, err := c.CopyTo(ctx, &got, "copy cell to stdout"+behind)
			cancel()
			if err != nil || got.String() != "1\t0\n2\t0\n3\t0\n" {
				t.Errorf("COPY brought %q, %v", &got, err)
			}
		}
		db.wantRows(t, 0)
	})
}

// What looks like a read and writes is none.
func TestReadsThatWriteAreRefused(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.exec(t, `create view dirtier as select * from dirty;
			create view counting as select nextval('counter');
			create function plus(int, int) returns int language sql volatile as $$ select public.writes($1) + $2 $$;
			create operator ### (leftarg = int, rightarg = int, function = plus);
			create aggregate total(int) (sfunc = plus, stype = int, initcond = '0')`)
		c := db.connect(t)
		c.must("set wirefence.token = '" + stale + "'")
		for _, p := range protocols {
			for _, sql := range []string{
				"select * from dirty", "table dirtier", "select * from counting", "select 1 ### 2", "select total(1)",
				"select * from clean where writes(1) > 0", "select pure(writes(1))", "copy (table dirty) to stdout",
				"explain analyze select * from dirty", "select * from writes(1)", "select lo_create(0)",
			} {
				wantCode(t, p.run(c, sql), "WF001", p.name, sql)
			}
		}
		db.wantRows(t, 0)
		if called := value[bool](t, db, "select is_called from counter"); called {
			t.Error("the sequence was drawn from")
		}
	})
}
