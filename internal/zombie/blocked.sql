-- Sessions of this database that wait for a lock, with those that they wait for.
SELECT a.pid, coalesce(a.application_name, ''), pg_catalog.pg_blocking_pids(a.pid), coalesce(a.wait_event = 'advisory', false)
FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = current_database() AND cardinality(pg_catalog.pg_blocking_pids(a.pid)) > 0
ORDER BY 1
