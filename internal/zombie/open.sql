-- The transactions of this database that are open, and have or will have something to commit.
SELECT l.transactionid::text::bigint
FROM pg_catalog.pg_locks AS l
JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
  AND a.datname = current_database() AND a.pid <> pg_backend_pid()
