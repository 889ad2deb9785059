SELECT clock_timestamp(), coalesce(array_agg(DISTINCT l.transactionid::text), '{}')
FROM pg_catalog.pg_locks AS l WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
