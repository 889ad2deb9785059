SELECT pg_catalog.pg_advisory_unlock($1::bigint)
FROM pg_catalog.pg_locks AS l
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid = pg_catalog.pg_backend_pid()
  AND (l.classid::bigint << 32) | l.objid::bigint = $1::bigint
