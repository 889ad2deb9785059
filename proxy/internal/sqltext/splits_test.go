package sqltext

// splits are texts that every server accepts, from the version since on.
var splits = []struct {
	sql     string
	escapes bool
	since   int
}{
	{sql: ""}, {sql: ";"}, {sql: " ; ;; "}, {sql: "-- nothing"}, {sql: "/* nothing; */"},
	{sql: "select 1"}, {sql: "select 1;"}, {sql: ";select 1;;select 2"}, {sql: "select 1; -- x;"},
	{sql: "select ';'; select 'a'';b'"}, {sql: `select ";" from (select 1 as ";") x; select 1`},
	{sql: `select E'\';'; select 1`}, {sql: `select E'a\\'; select 1; select ';'`},
	{sql: `select '\'; select 1; --'`}, {sql: `select '\'; select 1; --'`, escapes: true},
	{sql: `select '\\'';'; select 1`, escapes: true}, {sql: `select '\\'';'; select 1`},
	{sql: "select 'a'\n'b;'; select 1"}, {sql: "select E'a'\n'\\';b'; select 1"},
	{sql: "select E'a' -- x ' ;\n '\\';b'; select 1"}, {sql: "select E'a'--;\n--;'\n\t'\\';'; select 2"},
	{sql: "select E'a'\r'\\';'; select 2"}, {sql: "select E'a'\f\n\f'\\';'; select 2"},
	{sql: "select N'a;'; select n'b'"}, {sql: `select N'\';'; select 1`, escapes: true}, {sql: "select B'01', X'1f'; select 1"},
	{sql: `select U&'\003b;'; select 1`},

	{sql: `select 1 as U&"d!0061t;" UESCAPE '!'; select 1`},
	{sql: "select $$;$$; select $a$;$$;$b$;$a$; select 1"}, {sql: "select $a$ $aa$ $b$a$; select ';'"},
	{sql: "select $_é1$;$_é1$; select 1"}, {sql: "select 1 as foo$1$; select 1 as a$$; select 2"},
	{sql: "select $$$$; select $$a$b$$"}, {sql: "select $x$$$x$; select 1"}, {sql: "select $$ $x$$; select 1"},
	{sql: "select /* ; /* ; */ ; */ 1; select 2"}, {sql: "select 1 /**/; select 2 /***/; select /*/;*/ 3"},
	{sql: "select 1 /*/*/;*/*/; select 2"}, {sql: "select 2*/*x*/3; select 1"}, {sql: "select 1+--c;\n2; select 3"},
	{sql: "select 1 --\n; select 2"}, {sql: "select 1 --;\r; select 2"}, {sql: "select 1 - -2; select 1 --2;"},
	{sql: "select 1 <--;\n 2; select 2"}, {sql: "select @ -1; select 1 -/*;*/-1"}, {sql: "select 1/**//**/+/**/1"},
	{sql: "select 1e5, 1.5e-3, .5, 1.; select 1.e5"}, {sql: "select 0x1F, 1_000; select 1", since: 16},
	{sql: "select (array[1,2,3])[1:2]; select 1::text"}, {sql: "select 123 abc; select 1"},
	{sql: "select((1)); (select 1); ((select 1) union (select 2))"}, {sql: "values (1); table pg_am; with a as (select 1) table a"},
	{sql: "create temp table r (a int); create rule ru as on insert to r do also (select 1; select 2); drop table r"},
	{sql: "begin; select 1; commit; begin; rollback; start transaction; end; begin; abort"},
	{sql: "begin; savepoint a; rollback to a; rollback work to savepoint a; release a; commit and chain; rollback"},
	{sql: "create or replace function pg_temp.f() returns int language sql begin atomic select 1; select case when true then 2 end; end; select 1"},

	{sql: "create or replace function pg_temp.h(a int) returns int begin atomic select 1 as end; select 1 end; return case a when 1 then 2 else 3 end; end; select 1; select 2"},
	{sql: "create or replace procedure pg_temp.p() begin atomic end; create or replace procedure pg_temp.p() begin atomic select 1; end; select 3"},
	{sql: "create or replace function pg_temp.k() returns int return 1; select 1"},
	{sql: "create or replace function pg_temp.i() returns int language plpgsql as $$ begin return 1; end; $$; select 1"},
	{sql: "do $$ begin perform 1; end $$; select 1"}, {sql: "do 'begin null; end'; select 1"},
	{sql: "prepare x as select $1::int; execute x(1); deallocate x; deallocate all; discard plans"},
	{sql: "set search_path = public; reset all; show all; select set_config('a.b', ';', false)"},
	{sql: "declare c cursor with hold for select 1; fetch all from c; move c; close c"},
	{sql: "listen a; notify a, ';'; unlisten *; checkpoint; analyze pg_am"},
	{sql: "explain select 1; explain (costs off) (select 1); explain analyze values (1)"},
	{sql: "select 'é' as \"é;\", 'ü;'; select 1"},
	{sql: "copy (select ';') to stdout; select 1"}, {sql: "select '\x01;'; select 1"},
}
