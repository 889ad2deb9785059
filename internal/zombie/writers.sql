-- Sessions with an open transaction that has written to these tables, or is about to; whether they
-- wait for their client, which may be in the midst of a statement's messages. Autovacuum has no user.
SELECT DISTINCT a.pid, a.usename::text, coalesce(a.application_name, ''), 
  coalesce(a.state, '') = 'idle in transaction' OR coalesce(a.wait_event, '') = 'ClientRead'
FROM pg_catalog.pg_locks AS l
JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = ANY ($1::oid[]) AND l.granted
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND a.usename IS NOT NULL AND a.pid <> pg_backend_pid()
ORDER BY 1
