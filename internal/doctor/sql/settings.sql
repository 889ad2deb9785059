-- reset_val is what the session began with; current_setting would be what this
-- transaction has set.
WITH s AS (SELECT name, reset_val, source FROM pg_settings)
SELECT current_database()::text,
       (SELECT reset_val = 'on' FROM s WHERE name = 'fsync'),
       (SELECT reset_val = 'on' FROM s WHERE name = 'full_page_writes'),
       (SELECT reset_val FROM s WHERE name = 'synchronous_commit'),
       (SELECT source FROM s WHERE name = 'synchronous_commit'),
       (SELECT reset_val::bigint FROM s WHERE name = 'statement_timeout'),
       (SELECT reset_val::bigint FROM s WHERE name = 'lock_timeout'),
       (SELECT reset_val::bigint FROM s WHERE name = 'idle_in_transaction_session_timeout'),
       (SELECT source FROM s WHERE name = 'statement_timeout'),
       (SELECT reset_val::bigint FROM s WHERE name = 'max_locks_per_transaction'),
       (SELECT reset_val::bigint FROM s WHERE name = 'max_connections'),
       (SELECT reset_val::bigint FROM s WHERE name = 'max_prepared_transactions'),
       (SELECT coalesce(sum(reset_val::bigint), 0)::bigint FROM s WHERE name IN ('superuser_reserved_connections', 'reserved_connections')),
       (SELECT count(*) FROM pg_locks WHERE NOT fastpath),
       (SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database),
       (SELECT count(*) FROM pg_stat_replication AS r WHERE r.application_name <> 'pg_basebackup'),
       (SELECT reset_val FROM s WHERE name = 'synchronous_standby_names')
