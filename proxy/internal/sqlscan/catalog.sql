-- What a database's catalog says of names, as one text: see ParseCatalog.
-- Everything is qualified, operators too: the session's search_path, which a
-- client chooses, must not redirect a name. No literal holds a backslash, which
-- standard_conforming_strings would decide about.
with recursive
-- CASE keeps the planner from estimating each name.
fn as not materialized (
  select p.*,
         case when p.provolatile OPERATOR(pg_catalog.=) 'v'
         -- Functions of pg_catalog that are volatile and yet write nothing that a
         -- fence protects: they read clocks, files or statistics, draw random
         -- numbers, or take locks that end with the transaction or session.
         then not (p.pronamespace OPERATOR(pg_catalog.=) 11::pg_catalog.oid and p.proname OPERATOR(pg_catalog.=) any ('{
  bernoulli,system,clock_timestamp,timeofday,current_query,random,random_normal,setseed,array_sample,array_shuffle,
  gen_random_uuid,uuidv4,uuidv7,currval,set_config,txid_status,txid_current,txid_current_if_assigned,
  pg_current_xact_id,pg_current_xact_id_if_assigned,pg_xact_status,pg_xact_commit_timestamp,
  pg_xact_commit_timestamp_origin,pg_last_committed_xact,pg_get_multixact_members,pg_backend_pid,
  pg_sleep,pg_sleep_for,pg_sleep_until,pg_blocking_pids,pg_safe_snapshot_blocking_pids,
  pg_isolation_test_session_is_blocked,pg_export_snapshot,
  pg_advisory_lock,pg_advisory_lock_shared,pg_advisory_unlock,pg_advisory_unlock_all,pg_advisory_unlock_shared,
  pg_advisory_xact_lock,pg_advisory_xact_lock_shared,pg_try_advisory_lock,pg_try_advisory_lock_shared,
  pg_try_advisory_xact_lock,pg_try_advisory_xact_lock_shared,pg_lock_status,pg_prepared_xact,
  pg_database_size,pg_tablespace_size,pg_relation_size,pg_table_size,pg_indexes_size,pg_total_relation_size,
  pg_partition_tree,pg_partition_ancestors,pg_sequence_last_value,pg_get_sequence_data,
  pg_collation_actual_version,pg_database_collation_actual_version,pg_jit_available,
  pg_is_in_recovery,pg_is_wal_replay_paused,pg_get_wal_replay_pause_state,pg_current_logfile,
  pg_current_wal_flush_lsn,pg_current_wal_insert_lsn,pg_current_wal_lsn,pg_last_wal_receive_lsn,
  pg_last_wal_replay_lsn,pg_last_xact_replay_timestamp,pg_notification_queue_usage,
  pg_control_checkpoint,pg_control_init,pg_control_recovery,pg_control_system,
  pg_get_aios,pg_get_backend_memory_contexts,pg_get_loaded_modules,pg_get_shmem_allocations,
  pg_get_shmem_allocations_numa,pg_get_wait_events,pg_get_wal_resource_managers,pg_get_wal_summarizer_state,
  pg_available_wal_summaries,pg_wal_summary_contents,pg_hba_file_rules,pg_ident_file_mappings,
  pg_show_all_file_settings,pg_show_replication_origin_status,pg_replication_origin_progress,
  pg_replication_origin_session_is_setup,pg_replication_origin_session_progress,
  pg_ls_archive_statusdir,pg_ls_dir,pg_ls_logdir,pg_ls_logicalmapdir,pg_ls_logicalsnapdir,pg_ls_replslotdir,
  pg_ls_summariesdir,pg_ls_tmpdir,pg_ls_waldir,pg_read_file,pg_read_binary_file,pg_stat_file,
  pg_stat_clear_snapshot,pg_stat_force_next_flush,pg_stat_get_backend_io,pg_stat_get_backend_wal,pg_stat_get_io,
  pg_stat_get_recovery_prefetch,pg_stat_have_stats,pg_stat_get_xact_blocks_fetched,pg_stat_get_xact_blocks_hit,
  pg_stat_get_xact_function_calls,pg_stat_get_xact_function_self_time,pg_stat_get_xact_function_total_time,
  pg_stat_get_xact_numscans,pg_stat_get_xact_tuples_deleted,pg_stat_get_xact_tuples_fetched,
  pg_stat_get_xact_tuples_hot_updated,pg_stat_get_xact_tuples_inserted,pg_stat_get_xact_tuples_newpage_updated,
  pg_stat_get_xact_tuples_returned,pg_stat_get_xact_tuples_updated}'::pg_catalog.name[]))
         else false end
         -- Functions that run SQL, or make values of types, which their arguments
         -- name: what they do is not to be seen, whatever they are declared as.
         or case when p.provolatile OPERATOR(pg_catalog.<>) 'v'
         then p.proname OPERATOR(pg_catalog.=) any ('{
  table_to_xml,table_to_xmlschema,table_to_xml_and_xmlschema,schema_to_xml,schema_to_xmlschema,
  schema_to_xml_and_xmlschema,database_to_xml,database_to_xmlschema,database_to_xml_and_xmlschema,
  pg_input_is_valid,pg_input_error_info,
  crosstab,crosstab2,crosstab3,crosstab4,connectby,xpath_table,dblink}'::pg_catalog.name[])
         else false end as writes
    from pg_catalog.pg_proc p
),
-- Node trees name pinned functions, which pg_depend doesn't. A query that locks
-- rows is a write too.
pinned as materialized (
  select ':((funcid|opfuncid|aggfnoid|winfnoid) ('::pg_catalog.text
         OPERATOR(pg_catalog.||) pg_catalog.string_agg(f.oid::pg_catalog.text, '|')
         OPERATOR(pg_catalog.||) ') |hasForUpdate true)' as pattern
    from fn f where f.oid OPERATOR(pg_catalog.<) 16384::pg_catalog.oid and f.writes
),
-- What holds expressions, and which object an expression in it makes unsafe.
holder (class, id, to_class, to_id, tree) as materialized (
  select 'pg_catalog.pg_rewrite'::pg_catalog.regclass::pg_catalog.oid, w.oid,
         'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid, w.ev_class, w.ev_action
    from pg_catalog.pg_rewrite w
    cross join lateral (select c.relkind from pg_catalog.pg_class c where c.oid OPERATOR(pg_catalog.=) w.ev_class offset 0) c
   where c.relkind OPERATOR(pg_catalog.=) 'v' and w.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  union all
  select 'pg_catalog.pg_policy'::pg_catalog.regclass, y.oid, 'pg_catalog.pg_class'::pg_catalog.regclass, y.polrelid, y.polqual
    from pg_catalog.pg_policy y
  union all
  select 'pg_catalog.pg_constraint'::pg_catalog.regclass, c.oid, 'pg_catalog.pg_type'::pg_catalog.regclass, c.contypid, c.conbin
    from pg_catalog.pg_constraint c where c.contypid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  union all
  select 'pg_catalog.pg_proc'::pg_catalog.regclass, p.oid, 'pg_catalog.pg_proc'::pg_catalog.regclass, p.oid, p.proargdefaults
    from pg_catalog.pg_proc p
   where p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid and p.pronargdefaults OPERATOR(pg_catalog.>) 0
),
-- Which object makes which other one unsafe.
edge (from_class, from_id, to_class, to_id) as materialized (
  select d.refclassid, d.refobjid, h.to_class, h.to_id
    from holder h
    join pg_catalog.pg_depend d on d.classid OPERATOR(pg_catalog.=) h.class and d.objid OPERATOR(pg_catalog.=) h.id
  union all
  -- A type: those made of it, and functions that take or return it.
  select d.refclassid, d.refobjid, d.classid, d.objid
    from pg_catalog.pg_depend d
   where d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass::pg_catalog.oid
     and d.classid OPERATOR(pg_catalog.=) any (array['pg_catalog.pg_type'::pg_catalog.regclass,
                                                     'pg_catalog.pg_proc'::pg_catalog.regclass]::pg_catalog.oid[])
  union all
  -- A column's type: the type of the row.
  select d.refclassid, d.refobjid, d.refclassid, c.reltype
    from pg_catalog.pg_depend d
    join pg_catalog.pg_class c on c.oid OPERATOR(pg_catalog.=) d.objid
   where d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass::pg_catalog.oid
     and d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
     and c.reltype OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
  union all
  select 'pg_catalog.pg_proc'::pg_catalog.regclass, o.oprcode, 'pg_catalog.pg_operator'::pg_catalog.regclass, o.oid
    from pg_catalog.pg_operator o
   where o.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  union all
  select 'pg_catalog.pg_proc'::pg_catalog.regclass, c.castfunc, 'pg_catalog.pg_type'::pg_catalog.regclass, c.casttarget
    from pg_catalog.pg_cast c
   where c.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid and c.castfunc OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
  union all
  -- Aggregates are always declared immutable: their support functions tell.
  select 'pg_catalog.pg_proc'::pg_catalog.regclass, support.oid, 'pg_catalog.pg_proc'::pg_catalog.regclass, a.aggfnoid
    from pg_catalog.pg_aggregate a
    cross join lateral pg_catalog.unnest(array[a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn,
           a.aggdeserialfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]::pg_catalog.oid[]) as support(oid)
   where a.aggfnoid::pg_catalog.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
),
-- What is unsafe besides the functions that say so themselves.
suspect (class, id) as (
  (select e.to_class, e.to_id
     from edge e
     join fn f on f.oid OPERATOR(pg_catalog.=) e.from_id
    where e.from_class OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid and f.writes
   union all
   select h.to_class, h.to_id
     from holder h, pinned
    where h.tree::pg_catalog.text OPERATOR(pg_catalog.~) pinned.pattern)
  union
  select e.to_class, e.to_id
    from suspect s
    join edge e on e.from_class OPERATOR(pg_catalog.=) s.class and e.from_id OPERATOR(pg_catalog.=) s.id
),
-- Functions of users, with their text in lower case: that of a body which is
-- kept as a tree names functions by number and holds literals as bytes.
routine as not materialized (
  select p.oid, p.proname::pg_catalog.text collate pg_catalog."C" as name, s.text,
         p.proconfig::pg_catalog.text as config, p.prosqlbody is not null as is_tree
    from pg_catalog.pg_proc p
    cross join lateral (
      select pg_catalog.lower(coalesce(p.prosqlbody::pg_catalog.text, p.prosrc) collate pg_catalog."C") as text offset 0) s
   where p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid and p.prokind OPERATOR(pg_catalog.<>) 'a'
     and p.pronamespace OPERATOR(pg_catalog.<>) all (array(
           select n.oid from pg_catalog.pg_namespace n where n.nspname OPERATOR(pg_catalog.=) 'wirefence'))
),
-- Those that may set the session variable: they mention it, or set what they
-- compute. set_config('x.y', ...) is harmless, and so are calls of the schema's own
-- functions; 2078 is set_config.
direct (name) as materialized (
  select r.name from routine r
   where r.config OPERATOR(pg_catalog.~*) 'wirefence'
      or pg_catalog.strpos(r.text, 'wirefence') OPERATOR(pg_catalog.>) 0
         and pg_catalog.strpos(pg_catalog.regexp_replace(r.text, 'wirefence[.](?!token)[a-z_]+[[:space:]]*[(]', '', 'g'),
               'wirefence') OPERATOR(pg_catalog.>) 0
      or pg_catalog.strpos(r.text, 'set_config') OPERATOR(pg_catalog.>) 0
         and pg_catalog.strpos(pg_catalog.regexp_replace(r.text,
               'set_config"?[[:space:]]*[(][[:space:]]*''+(?!client_encoding|standard_conforming_strings)[a-z0-9_.]+''+(::text)?[[:space:]]*,', '', 'g'),
               'set_config') OPERATOR(pg_catalog.>) 0
      or pg_catalog.strpos(r.text, '''set ') OPERATOR(pg_catalog.>) 0
         and r.text OPERATOR(pg_catalog.~) '''set[[:space:]]+((local|session)[[:space:]]+)?(''|%)'
      or r.is_tree
         and r.text OPERATOR(pg_catalog.~) ':funcid 2078 [^{]*:args [(][{](?!const)| (119|87) (105|73) (114|82) (101|69) (102|70) (101|69) (110|78) (99|67) (101|69) '
),
calls (caller, callee) as materialized (
  select r.name, pg_catalog.btrim(m.found[1], '"')
    from routine r
    cross join lateral pg_catalog.regexp_matches(r.text, '("[^"]+"|[^][:space:]["''(),;:.=<>|+*/-]+)[[:space:]]*[(]', 'g') as m(found)
   where exists (select from direct) and not r.is_tree
  union all
  select r.name, pg_catalog.lower(p.proname::pg_catalog.text collate pg_catalog."C")
    from routine r
    join pg_catalog.pg_depend d on d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
                               and d.objid OPERATOR(pg_catalog.=) r.oid
    join pg_catalog.pg_proc p on p.oid OPERATOR(pg_catalog.=) d.refobjid
   where d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
     and exists (select from direct) and r.is_tree
),
-- Their callers in one row for each make the planner hash them once, not once
-- for each step of the recursion.
called (callee, callers) as materialized (
  select c.callee, pg_catalog.array_agg(c.caller) from calls c group by c.callee
),
setter (name) as (
  select d.name from direct d
  union
  select c.caller
    from setter s
    join called d on d.callee OPERATOR(pg_catalog.=) pg_catalog.lower(s.name)
    cross join lateral pg_catalog.unnest(d.callers) as c(caller)
),
-- Of functions that may write, row.name calls those which take a row, or whatever
-- they are given: record, any, anyelement, anynonarray and the like.
line (kind, name) as (
  select case when f.prokind OPERATOR(pg_catalog.=) 'p' then 'p' when not f.writes then 's'
              when f.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid and f.prokind OPERATOR(pg_catalog.=) 'f'
                   and f.pronargs OPERATOR(pg_catalog.-) f.pronargdefaults OPERATOR(pg_catalog.<=) 1
                   and (f.proargtypes[0] OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
                     or f.proargtypes[0] OPERATOR(pg_catalog.=) any ('{2249,2276,2283,2776,5077,5079}'::pg_catalog.oid[]))
              then 'f' else 'u' end, f.proname::pg_catalog.text
    from fn f
  union all
  select 'x', s.name from setter s
  union all
  select 'f', p.proname::pg_catalog.text
    from suspect s join pg_catalog.pg_proc p on p.oid OPERATOR(pg_catalog.=) s.id
   where s.class OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
     and p.prokind OPERATOR(pg_catalog.<>) 'p'
  union all
  select 'r', c.relname::pg_catalog.text
    from suspect s join pg_catalog.pg_class c on c.oid OPERATOR(pg_catalog.=) s.id
   where s.class OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
  union all
  select 't', t.typname::pg_catalog.text
    from suspect s join pg_catalog.pg_type t on t.oid OPERATOR(pg_catalog.=) s.id
   where s.class OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass::pg_catalog.oid
  union all
  select 'o', o.oprname::pg_catalog.text
    from suspect s join pg_catalog.pg_operator o on o.oid OPERATOR(pg_catalog.=) s.id
   where s.class OPERATOR(pg_catalog.=) 'pg_catalog.pg_operator'::pg_catalog.regclass::pg_catalog.oid
  union all
  -- Whether fences can be checked here.
  select 'w', '' where pg_catalog.to_regprocedure('wirefence.check(pg_catalog.text,pg_catalog.text,pg_catalog.bool)') is not null
  union all
  -- Whether reads are checked here.
  select 'c', ''
    from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid OPERATOR(pg_catalog.=) p.pronamespace
   where n.nspname OPERATOR(pg_catalog.=) 'wirefence' and p.proname OPERATOR(pg_catalog.=) 'reads_are_checked'
     and p.prosrc OPERATOR(pg_catalog.=) 'SELECT true'
  union all
  -- A conversion that needs no mention of its type.
  select '!', ''
    from pg_catalog.pg_cast c join fn f on f.oid OPERATOR(pg_catalog.=) c.castfunc
   where c.castcontext OPERATOR(pg_catalog.=) 'i' and c.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
     and (f.writes or exists (select from suspect s where s.id OPERATOR(pg_catalog.=) f.oid))
)
-- The client's encoding may lack a character beyond ASCII, and then the answer would be
-- an error. The scanner takes no name with such a one for known; "?" stands for what else
-- there is to say of it.
select pg_catalog.string_agg(
         case when l.name collate pg_catalog."C" OPERATOR(pg_catalog.~) ('[^'::pg_catalog.text OPERATOR(pg_catalog.||)
                     pg_catalog.chr(1) OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) pg_catalog.chr(127) OPERATOR(pg_catalog.||) ']')
              then case when l.kind OPERATOR(pg_catalog.=) any ('{s,u,p}'::pg_catalog.text[]) then ''
                        else l.kind OPERATOR(pg_catalog.||) '?' end
              when pg_catalog.strpos(l.name, pg_catalog.chr(10)) OPERATOR(pg_catalog.=) 0 then l.kind OPERATOR(pg_catalog.||) l.name
              when l.kind OPERATOR(pg_catalog.=) any ('{s,u}'::pg_catalog.text[]) then ''
              else '!' end,
         pg_catalog.chr(10)) OPERATOR(pg_catalog.||) pg_catalog.chr(10) OPERATOR(pg_catalog.||) '.'
  from line l
