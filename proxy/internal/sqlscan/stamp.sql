-- A text that differs when anything has changed of what catalog.sql reads: of
-- each catalog the number of rows and the sum of the transactions that wrote
-- them. CREATE OR REPLACE and ALTER write a row anew.
select pg_catalog.concat_ws(' ',
  (select pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(t.xmin::pg_catalog.text::pg_catalog.int8)) from pg_catalog.pg_proc t),
  (select pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(t.xmin::pg_catalog.text::pg_catalog.int8)) from pg_catalog.pg_aggregate t),
  (select pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(t.xmin::pg_catalog.text::pg_catalog.int8)) from pg_catalog.pg_operator t),
  (select pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(t.xmin::pg_catalog.text::pg_catalog.int8)) from pg_catalog.pg_rewrite t),
  (select pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(t.xmin::pg_catalog.text::pg_catalog.int8)) from pg_catalog.pg_policy t),
  (select pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(t.xmin::pg_catalog.text::pg_catalog.int8)) from pg_catalog.pg_cast t),
  (select pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(t.xmin::pg_catalog.text::pg_catalog.int8)) from pg_catalog.pg_namespace t),
  (select pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(t.xmin::pg_catalog.text::pg_catalog.int8)) from pg_catalog.pg_constraint t
    where t.contypid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid),
  (select pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(t.xmin::pg_catalog.text::pg_catalog.int8)) from pg_catalog.pg_class t
    where t.relkind OPERATOR(pg_catalog.=) any ('{c,v}'::pg_catalog."char"[]) or t.relrowsecurity),
  (select pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(t.xmin::pg_catalog.text::pg_catalog.int8)) from pg_catalog.pg_type t
    where t.typtype OPERATOR(pg_catalog.<>) 'c' and t.typelem OPERATOR(pg_catalog.=) 0::pg_catalog.oid))
