-- What a database's catalog says of names, as one text: see ParseCatalog.
-- Everything is qualified, operators too: the session's search_path, which a
-- client chooses, must not redirect a name.
with recursive
-- Functions of pg_catalog that are volatile and yet write nothing that a fence
-- protects: they read clocks, files or statistics, draw random numbers, or take
-- locks that end with the transaction or session.
harmless (names) as materialized (select '{
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
  pg_stat_get_xact_tuples_returned,pg_stat_get_xact_tuples_updated}'::pg_catalog.text[]),
-- Functions that run SQL, or make values of types, which their arguments name:
-- what they do is not to be seen, whatever they are declared as.
running (names) as materialized (select '{
  table_to_xml,table_to_xmlschema,table_to_xml_and_xmlschema,schema_to_xml,schema_to_xmlschema,
  schema_to_xml_and_xmlschema,database_to_xml,database_to_xmlschema,database_to_xml_and_xmlschema,
  pg_input_is_valid,pg_input_error_info,
  crosstab,crosstab2,crosstab3,crosstab4,connectby,xpath_table,dblink}'::pg_catalog.text[]),
fn as materialized (
  select p.oid, p.proname, p.pronamespace, p.prokind, p.pronargs, p.pronargdefaults, p.proargtypes,
         p.oid OPERATOR(pg_catalog.<) 16384::pg_catalog.oid as built_in,
         (p.provolatile OPERATOR(pg_catalog.=) 'v'
           and not (p.pronamespace OPERATOR(pg_catalog.=) 11::pg_catalog.oid
                    and p.proname::pg_catalog.text OPERATOR(pg_catalog.=) any ((select h.names from harmless h)::pg_catalog.text[])))
         or p.proname::pg_catalog.text OPERATOR(pg_catalog.=) any ((select r.names from running r)::pg_catalog.text[]) as writes
    from pg_catalog.pg_proc p
),
-- Aggregates are always declared immutable: their support functions tell.
unsafe_aggregate as materialized (
  select distinct a.aggfnoid::pg_catalog.oid as oid
    from pg_catalog.pg_aggregate a
    cross join lateral pg_catalog.unnest(array[a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn,
           a.aggdeserialfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]::pg_catalog.oid[]) as support(oid)
    join fn f on f.oid OPERATOR(pg_catalog.=) support.oid
   where f.writes
),
unsafe_fn as materialized (
  select f.oid from fn f where f.writes
  union all
  select a.oid from unsafe_aggregate a
),
-- Node trees name pinned functions, which pg_depend doesn't.
pinned as materialized (
  select ':(funcid|opfuncid|aggfnoid|winfnoid) ('::pg_catalog.text
         OPERATOR(pg_catalog.||) pg_catalog.string_agg(f.oid::pg_catalog.text, '|')
         OPERATOR(pg_catalog.||) ') ' as pattern
    from fn f where f.writes and f.built_in
),
-- Which object makes which other one unsafe.
edge as materialized (
  select 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid as from_class, o.oprcode::pg_catalog.oid as from_id,
         'pg_catalog.pg_operator'::pg_catalog.regclass::pg_catalog.oid as to_class, o.oid as to_id
    from pg_catalog.pg_operator o
   where o.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  union all
  select 'pg_catalog.pg_proc'::pg_catalog.regclass, c.castfunc,
         'pg_catalog.pg_type'::pg_catalog.regclass, c.casttarget
    from pg_catalog.pg_cast c
   where c.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid and c.castfunc OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
  union all
  select d.refclassid, d.refobjid, 'pg_catalog.pg_type'::pg_catalog.regclass, c.contypid
    from pg_catalog.pg_constraint c
    join pg_catalog.pg_depend d on d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_constraint'::pg_catalog.regclass::pg_catalog.oid
                               and d.objid OPERATOR(pg_catalog.=) c.oid
   where c.contypid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
  union all
  select 'pg_catalog.pg_type'::pg_catalog.regclass, t.typbasetype, 'pg_catalog.pg_type'::pg_catalog.regclass, t.oid
    from pg_catalog.pg_type t where t.typbasetype OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  union all
  select 'pg_catalog.pg_type'::pg_catalog.regclass, t.typelem, 'pg_catalog.pg_type'::pg_catalog.regclass, t.oid
    from pg_catalog.pg_type t
    join pg_catalog.pg_type e on e.oid OPERATOR(pg_catalog.=) t.typelem
   where t.typelem OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid and e.typtype OPERATOR(pg_catalog.=) 'd'
  union all
  select 'pg_catalog.pg_type'::pg_catalog.regclass, a.atttypid, 'pg_catalog.pg_type'::pg_catalog.regclass, c.reltype
    from pg_catalog.pg_attribute a
    join pg_catalog.pg_class c on c.oid OPERATOR(pg_catalog.=) a.attrelid
    join pg_catalog.pg_type t on t.oid OPERATOR(pg_catalog.=) a.atttypid
   where a.atttypid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid and c.reltype OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
     and t.typtype OPERATOR(pg_catalog.=) 'd'
  union all
  select d.refclassid, d.refobjid, 'pg_catalog.pg_class'::pg_catalog.regclass, w.ev_class
    from pg_catalog.pg_rewrite w
    join pg_catalog.pg_class c on c.oid OPERATOR(pg_catalog.=) w.ev_class
    join pg_catalog.pg_depend d on d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_rewrite'::pg_catalog.regclass::pg_catalog.oid
                               and d.objid OPERATOR(pg_catalog.=) w.oid
   where c.relkind OPERATOR(pg_catalog.=) 'v' and w.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
  union all
  select d.refclassid, d.refobjid, 'pg_catalog.pg_class'::pg_catalog.regclass, y.polrelid
    from pg_catalog.pg_policy y
    join pg_catalog.pg_depend d on d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_policy'::pg_catalog.regclass::pg_catalog.oid
                               and d.objid OPERATOR(pg_catalog.=) y.oid
),
suspect (class, id) as (
  (select 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid, u.oid from unsafe_fn u
   union all
   select 'pg_catalog.pg_class'::pg_catalog.regclass, w.ev_class
     from pg_catalog.pg_rewrite w
     join pg_catalog.pg_class c on c.oid OPERATOR(pg_catalog.=) w.ev_class, pinned
    where c.relkind OPERATOR(pg_catalog.=) 'v' and w.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
      and w.ev_action::pg_catalog.text OPERATOR(pg_catalog.~) pinned.pattern
   union all
   select 'pg_catalog.pg_class'::pg_catalog.regclass, y.polrelid
     from pg_catalog.pg_policy y, pinned
    where y.polqual::pg_catalog.text OPERATOR(pg_catalog.~) pinned.pattern
   union all
   select 'pg_catalog.pg_type'::pg_catalog.regclass, c.contypid
     from pg_catalog.pg_constraint c, pinned
    where c.contypid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
      and c.conbin::pg_catalog.text OPERATOR(pg_catalog.~) pinned.pattern)
  union
  select e.to_class, e.to_id
    from suspect s
    join edge e on e.from_class OPERATOR(pg_catalog.=) s.class and e.from_id OPERATOR(pg_catalog.=) s.id
),
-- Functions of users that may set the session variable, and those that call them.
-- Sources are lowered, which takes time, only where there is such a function.
routine as not materialized (
  select p.oid, p.proname::pg_catalog.text as name, p.proconfig::pg_catalog.text as config,
         case when p.prosqlbody is null then p.prosrc else pg_catalog.pg_get_function_sqlbody(p.oid) end
         collate pg_catalog."C" as text
    from pg_catalog.pg_proc p
   where p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid and p.prokind OPERATOR(pg_catalog.<>) 'a'
     and p.pronamespace OPERATOR(pg_catalog.<>) all (array(
           select n.oid from pg_catalog.pg_namespace n where n.nspname OPERATOR(pg_catalog.=) 'wirefence'))
),
source as materialized (
  select r.name, pg_catalog.lower(r.text) as text from routine r
),
setter (name, level) as (
  select r.name, 0 from routine r
   where r.text OPERATOR(pg_catalog.~*) 'set_config|wirefence'
      or r.config OPERATOR(pg_catalog.~*) 'wirefence'
  union
  select s.name, r.level OPERATOR(pg_catalog.+) 1
    from setter r
    join source s on pg_catalog.strpos(s.text, pg_catalog.lower(r.name)) OPERATOR(pg_catalog.>) 0
   where r.level OPERATOR(pg_catalog.<) 4 and s.name OPERATOR(pg_catalog.<>) r.name
),
line (kind, name) as (
  select case when pg_catalog.bool_or(f.writes or a.oid is not null) then 'u' else 's' end, f.proname::pg_catalog.text
    from fn f
    left join unsafe_aggregate a on a.oid OPERATOR(pg_catalog.=) f.oid
   where f.prokind OPERATOR(pg_catalog.<>) 'p'
   group by f.proname
  union
  select 'p', f.proname::pg_catalog.text from fn f where f.prokind OPERATOR(pg_catalog.=) 'p'
  union
  select 'x', s.name from setter s
  union
  select 'x', c.relname::pg_catalog.text
    from pg_catalog.pg_trigger t
    join fn f on f.oid OPERATOR(pg_catalog.=) t.tgfoid
    join setter s on s.name OPERATOR(pg_catalog.=) f.proname::pg_catalog.text
    join pg_catalog.pg_class c on c.oid OPERATOR(pg_catalog.=) t.tgrelid
   where not f.built_in
  union
  select 'x', c.relname::pg_catalog.text
    from setter s
    join fn f on f.proname::pg_catalog.text OPERATOR(pg_catalog.=) s.name
    join edge e on e.from_class OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
               and e.from_id OPERATOR(pg_catalog.=) f.oid
    join pg_catalog.pg_class c on c.oid OPERATOR(pg_catalog.=) e.to_id
   where e.to_class OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
  union
  select 'r', c.relname::pg_catalog.text
    from suspect s join pg_catalog.pg_class c on c.oid OPERATOR(pg_catalog.=) s.id
   where s.class OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
  union
  select 't', t.typname::pg_catalog.text
    from suspect s join pg_catalog.pg_type t on t.oid OPERATOR(pg_catalog.=) s.id
   where s.class OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass::pg_catalog.oid
  union
  select 'o', o.oprname::pg_catalog.text
    from suspect s join pg_catalog.pg_operator o on o.oid OPERATOR(pg_catalog.=) s.id
   where s.class OPERATOR(pg_catalog.=) 'pg_catalog.pg_operator'::pg_catalog.regclass::pg_catalog.oid
  union
  -- A conversion that needs no mention of its type.
  select '!', ''
    from pg_catalog.pg_cast c join unsafe_fn u on u.oid OPERATOR(pg_catalog.=) c.castfunc
   where c.castcontext OPERATOR(pg_catalog.=) 'i'
  union
  select 'f', f.proname::pg_catalog.text
    from fn f
    join unsafe_fn u on u.oid OPERATOR(pg_catalog.=) f.oid
    join pg_catalog.pg_type t on t.oid OPERATOR(pg_catalog.=) f.proargtypes[0]
   where not f.built_in and f.prokind OPERATOR(pg_catalog.=) 'f'
     and f.pronargs OPERATOR(pg_catalog.-) f.pronargdefaults OPERATOR(pg_catalog.<=) 1
     and t.typtype OPERATOR(pg_catalog.=) any ('{c,p,d}'::pg_catalog."char"[])
)
select pg_catalog.string_agg(
         case when pg_catalog.strpos(l.name, pg_catalog.chr(10)) OPERATOR(pg_catalog.=) 0 then l.kind OPERATOR(pg_catalog.||) l.name
              when l.kind OPERATOR(pg_catalog.=) any ('{s,u}'::pg_catalog.text[]) then ''
              else '!' end,
         pg_catalog.chr(10)) OPERATOR(pg_catalog.||) pg_catalog.chr(10) OPERATOR(pg_catalog.||) '.'
  from line l
