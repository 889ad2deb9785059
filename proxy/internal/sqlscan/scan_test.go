package sqlscan

import "testing"

func TestClassify(t *testing.T) {
	cases := []struct {
		sql   string
		write bool
	}{
		{"select 1", false},
		{"select count(*) from t where a in (1,2) and b like ('x')", false},
		{"insert into t(a) values (1)", true},
		{"select nextval('s')", true},
		{"with a as (delete from t returning *) select * from a", true},
		{"explain insert into t values (1)", false},
		{"explain (analyze) insert into t values (1)", true},
		{"explain (select 1)", false},
		{`explain ("analyze") insert into t values (1)`, true},
		{`explain (costs off, "analyze" on) insert into t values (1)`, true},
		{`explain (U&"\0061nalyze") insert into t values (1)`, true},
		{`explain ("costs" off) insert into t values (1)`, false},
		{"select 1 as as into made", true},
		{"select 1 as as, 2 as into from t", false},
		{"select 1 as as for update", true},
		{"explain analyze (select 1)", false},
		{"copy t to stdout", false},
		{"copy (select 1) to stdout with (format csv, force_quote (a))", false},
		{"copy t from stdin", true},
		{"copy t(a) to '/tmp/x'", true},
		{"select distinct on (a) f(b) from t", true},
		{"select 1 operator(pg_catalog.+) f(1)", true},
		{"select * from (select 1) t(a)", false},
		{"select * from t f(x)", false},
		{"with a(x) as (select 1), f(y) as (select 2) select * from a", false},
		{"select x::timestamp with time zone, f(1)", true},
		{"grant select on t to x", true},
		{"select * from t for update", true},
		{"select * from t for no key update", true},
		{"select * into x from t", true},
		{"select treat(1 as nextval)", true},
	}
	var s Scanner
	for _, c := range cases {
		r := s.Scan([]byte(c.sql), Options{}, nil)
		if len(r.Statements) != 1 || r.Statements[0].Write != c.write {
			t.Errorf("%s: %+v", c.sql, r.Statements)
		}
	}
}
