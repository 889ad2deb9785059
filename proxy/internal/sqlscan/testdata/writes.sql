insert into t values (2)
insert into t (a, b) select 3, lower('x')
update t set a = 1
delete from t
truncate t
with x as (insert into t values (4) returning a) select * from x
with x as (select 1) insert into t select 5
with x as (update t set a = a returning 1), y as (select 2) select * from y
with x as (delete from t returning 1) select 1
select * into u from t
create table u as select 1
create table u (a int)
create view u as select 1
create index on t (b)
alter table t add d int
drop table t
grant select on t to public
comment on table t is 'x'
select nextval('s')
select setval('s', 5)
select pg_catalog.nextval('s')
select "nextval"('s')
select /* x */ nextval /* y */ ('s')
select treat('s' as nextval)
select writes(1)
select app.writes(1)
select "Writes It"(1)
select 1 where 1 = writes (1)
select either(1::text)
select case when true then writes(1) end
select abs(writes(1))
select * from writes(1)
select * from t, writes(t.a)
select * from t join lateral writes(t.a) on true
select * from rows from (pure(1), writes(2)) as g(a, b)
select distinct on (a) writes(a) from t
select 1 operator(pg_catalog.+) writes(1)
select 1 from t order by writes(1)
select 1 from t group by writes(1)
select 1 from t group by rollup (writes(1))
select value(1)
select lower(1)
select field(t) from t
select t.field from t
select (x).field from t x
select total(a) from t
select total(a) over () from t
select 1 ### 2
select 1 operator(app.###) 2
select * from v
select * from vv
select * from vn
select * from vo
select * from vt
table v
select * from app."v"
select 'x'::checked
select cast('x' as checked)
select cast('x' as app.checked)
select checked 'x'
select checked('x')
select array['x']::checked[]
select * from json_to_record('{"a":"1"}') as x(a checked)
select json_populate_record(null::uses, '{"a":"1"}')
select t::mood from t
explain analyze insert into t values (6)
explain (analyze true, costs off) select writes(1)
explain analyze verbose delete from t
copy t from stdin
copy (select writes(1)) to stdout
copy (select * from v) to stdout
copy (insert into t values (8) returning a) to stdout
call proc()
do $$ begin insert into app.t values (9); end $$
select query_to_xml('insert into app.t values (10)', true, true, '')
refresh materialized view mv
select * from t for update
select * from t for no key update
select * from t for share
select * from t for key share
select currval('s'), nextval('s')
select x::timestamp with time zone, writes(1) from (select now() x) y
with a as (select 1) (select 2) order by 1, writes(1)
with a(x) as (select 1), b(y) as (select writes(1)) select * from a, b
select (select writes(1))
select array[writes(1)]
select t.a as writes, writes(t.a) from t
select (array[1])[writes(1)]
select - writes(1)
select interval '1 day', writes(1)
select U&"\0077rites"(1)
explain ("analyze") insert into t values (9)
explain (U&"\0061nalyze") insert into t values (9)
select 1 as as into made
select row(1)::mood::smallint
select cast(row(1)::mood as smallint)
select row(1)::mood::pg_catalog.int2
select row(1)::mood::boolean
select array[row(1)::mood]::smallint[]
select defaults()
select counts()
select takes('x')
select takes_many('{x}')
select * from locking
select * from over_locking
select * from sharing
