select 1
select a, b from t where a in (1, 2) and b like ('x%') or a between (1) and (2)
select count(*), sum(a), string_agg(b, ',' order by a) filter (where a > 0) from t group by grouping sets ((a), ())
select a from t group by rollup(a), cube(b, c)
select row_number() over (partition by (a) order by (b)), rank() over w from t window w as (order by a)
select coalesce(a, 1), nullif(a, 1), greatest(1, 2), least(a), exists (select 1), array(select 1), row(1, 2) from t
select cast('1' as numeric(10,2)), '1'::varchar(10), '1'::pg_catalog.varchar(3), 1::decimal(4, 1), 'a'::"char", interval(3) '1 s'
select extract(year from now()), overlay('abc' placing 'x' from 1), position('a' in 'b'), substring('abc' from 1 for 2), trim(both ' ' from 'x')
select xmlelement(name x, xmlattributes('y' as z)), xmlforest(1 as a), '2020-01-01'::timestamp at time zone ('utc')
select * from (select 1, 2) as x(p, q) join (values (1), (2)) y(p) using (p)
select * from t x(p, q) cross join lateral (select 1) z(o) left join (t as u cross join t as w) on (true)
with recursive r(n) as (select 1 union all select n + 1 from r where n < 3), q(m) as (select 2) select * from r, q
with a as materialized (select 1), b as not materialized (select 2) select * from a, b order by (1) limit (1) offset (0)
select * from generate_series(1, 3) with ordinality as g(n, i)
select * from rows from (generate_series(1, 2), unnest(array[1])) as g(a, b)
select * from json_to_record('{"a":1}') as x(a int, b numeric(10,2), c varchar(3))
select pure(1), app.pure(2), "pure"(3), reads(1), pure_total(a) from t
select 1 #+# 2, 1 operator(app.#+#) 2, 1 operator(pg_catalog.+) abs(2)
select distinct on (a) abs(b::int * 0) from (select 1 a, '1' b) x
select * from clean
select 'x'::plain, cast('y' as plain)
select random(), clock_timestamp(), gen_random_uuid(), pg_sleep(0), txid_current(), pg_backend_pid(), pg_advisory_xact_lock(1)
select set_config('x.y', 'z', true), current_setting('x.y')
select * from t tablesample system (10) repeatable (1)
select * from t tablesample bernoulli (10)
select case when (a > 1) then (1) else (2) end from t
select t.a, x.b from t, lateral (select t.b) x where not (a = any (array[1])) and a is distinct from (2)
(select 1) union all (select 2) except (select 3) intersect (select 4)
values (1, 'insert into x'), (2, $$update t$$)
table t
select 'for update' as "update", 1 as "insert into"
select a as update from t
select a /* delete from t */ from t -- insert into t
select pg_table_size('app.t'), pg_relation_size('app.t'), pg_get_viewdef('app.clean'::regclass)
select * from pg_locks, pg_stat_activity, pg_settings limit 1
select current_user, current_date, localtime(3), current_timestamp(2), session_user
select a from t order by b collate "C" desc nulls last fetch first (1) rows only
select '{"a":[1]}'::jsonb #> '{a}' -> 0, '{}'::jsonb ? 'a', jsonb_path_query('[1]', '$[*]')
select array_agg(x order by x) within_x, percentile_cont(0.5) within group (order by x) from generate_series(1, 3) x
explain select writes(1)
explain (costs off, verbose) insert into t values (9)
explain analyze select pure(1)
explain (analyze, timing off) select count(*) from t
show all
show search_path
set local work_mem = '1MB'
set x.y = 'z'
reset work_mem
set constraints all deferred
set transaction isolation level read committed
declare c cursor for select * from t
copy t to stdout
copy t (a, b) to stdout (format csv, header)
copy (select pure(a) from t) to stdout with (format csv, force_quote (pure))
prepare p as insert into t values (7)
deallocate all
listen x
unlisten *
discard plans
savepoint a
analyze t
checkpoint
select * from uses
select a, value from (select 1 as a, 2 as value) q where value = (2)
select distinct (a), all_b from (select a, b as all_b from t) q
select lpad(b, 3), md5(b), to_char(now(), 'x'), b || 'x', -a, @ a from t
select 1 as writes, q.writes from (select 1 as writes) q
with x as (select a from t), y (c, d) as (select 1, 2) select * from x join y on (a = c)
select * from xmltable('/a' passing ('<a/>'::xml) columns x int path 'b') as z
select a from t where (a, b) in (select a, b from t) and not exists (select)
select jsonb_agg(t) filter (where a > 0) over (rows between (1) preceding and current row) from t
explain analyze verbose (select 1)
explain verbose select nextval('s')
lock table t in access share mode
lock table t in access exclusive mode
select mild(), takes_plain('x')
select '1'::text::bigint, cast('1' as varchar(3))
