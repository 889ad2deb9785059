-- Sessions that hold the advisory lock of a resource and wait for their client. The
-- state of others' sessions is null to who may not see it.
SELECT s.pid, l.resource_id, coalesce(s.usename::text, '-'), s.state IS NULL, coalesce(s.application_name, ''),
       CASE WHEN s.state LIKE 'idle in transaction%' THEN extract(epoch FROM clock_timestamp() - s.state_change) ELSE 0 END::double precision,
       coalesce(r.rolsuper, false)
FROM wirefence.resource_locks AS l
JOIN pg_locks AS a ON a.locktype = 'advisory' AND a.objsubid = 1 AND a.granted
    AND a.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND (a.classid::bigint << 32) | a.objid::bigint = hashtextextended(l.resource_id COLLATE "C", 8604534342903230051)
JOIN pg_stat_activity AS s ON s.pid = a.pid
LEFT JOIN pg_roles AS r ON r.oid = s.usesysid
ORDER BY 6 DESC, 1, 2
