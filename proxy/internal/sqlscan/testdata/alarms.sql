notify x
select either(1)
select update from (select 1 as update) x
select pg_notify('x', 'y')
select lo_get(1) where false
execute nothing
select unknown_function(1) where false
do $$ begin perform 1; end $$
select 1 as value, value(2) where false
create temporary table tt (a int)
explain (analyze off) insert into t values (1)
select * from policed
explain analyze create table u as select 1
select lo_create(0)
select checked from (select 1 as checked) x order by checked
