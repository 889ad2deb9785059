-- What a database knows of names, a row for each: the kind of thing, its name, and
-- what makes a mention of it a write: "" where nothing does. What is kept as an
-- expression comes as text, to be judged by the parser.
--   f function, volatile or not   o operator   c type with a volatile conversion
--   u volatile function that may be called as a field of a row
--   t temporary table
--   e function's default arguments   v view   p policy's condition   d domain's condition
select 'f', p.proname::text,
       case when bool_or(case when p.provolatile <> 'v' then false
                              when p.pronamespace = 'pg_catalog'::regnamespace then p.proname::text <> all ($1)
                              else true end) then 'volatile' else '' end
  from pg_proc p
 group by p.proname
union all
-- Aggregates are always declared immutable: the functions that they consist of tell.
select 'f', p.proname::text, 'volatile'
  from pg_aggregate g
  join pg_proc p on p.oid = g.aggfnoid
  join pg_proc s on s.oid in (g.aggtransfn, g.aggfinalfn, g.aggcombinefn, g.aggmtransfn, g.aggminvtransfn, g.aggmfinalfn)
 where s.provolatile = 'v'
union all
select 'u', p.proname::text, 'volatile'
  from pg_proc p join pg_type t on t.oid = p.proargtypes[0]
 where p.oid >= 16384 and p.provolatile = 'v' and p.prokind = 'f' and t.typtype = 'c'
union all
select 'o', o.oprname::text, 'volatile'
  from pg_operator o join pg_proc p on p.oid = o.oprcode
 where p.provolatile = 'v'
 group by o.oprname
union all
select 'c', t.typname::text, 'volatile'
  from pg_cast c join pg_proc p on p.oid = c.castfunc join pg_type t on t.oid = c.casttarget
 where p.provolatile = 'v'
union all
select 'e', p.proname::text, pg_get_expr(p.proargdefaults, 0)
  from pg_proc p
 where p.oid >= 16384 and p.pronargdefaults > 0
union all
select 't', c.relname::text, ''
  from pg_class c
 where c.relpersistence = 't' and c.relkind in ('r', 'p')
union all
select 'v', c.relname::text, pg_get_viewdef(c.oid)
  from pg_class c
 where c.oid >= 16384 and c.relkind = 'v'
union all
select 'p', c.relname::text, pg_get_expr(y.polqual, y.polrelid)
  from pg_policy y join pg_class c on c.oid = y.polrelid
 where y.polqual is not null
union all
select 'd', t.typname::text, pg_get_expr(k.conbin, 0)
  from pg_constraint k join pg_type t on t.oid = k.contypid
 where k.oid >= 16384
