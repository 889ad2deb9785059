-- The resources with the names $1 and up to $2 more, those that were granted last: the
-- last token, what counts it, when it was recorded, how many sessions keep a takeover
-- waiting, as wirefence.status() has it, and whether a lease that is kept in this database
-- is held.
WITH asked AS (
    SELECT convert_from(n.name, 'UTF8') AS name FROM unnest($1::bytea[]) AS n(name)
), wanted AS (
    SELECT l.resource_id, l.last_token, l.source, l.granted_at
    FROM wirefence.resource_locks AS l WHERE l.resource_id = ANY (ARRAY(SELECT a.name FROM asked AS a))
    UNION ALL
    (SELECT l.resource_id, l.last_token, l.source, l.granted_at
     FROM wirefence.resource_locks AS l WHERE l.resource_id <> ALL (ARRAY(SELECT a.name FROM asked AS a))
     ORDER BY l.granted_at DESC NULLS LAST, l.resource_id LIMIT $2)
), writers AS (
    SELECT (a.classid::bigint << 32) | a.objid::bigint AS key, count(DISTINCT (a.pid, a.virtualtransaction)) AS number
    FROM pg_locks AS a
    WHERE a.locktype = 'advisory' AND a.objsubid = 1 AND a.granted
      AND a.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    GROUP BY 1
)
SELECT convert_to(r.resource_id, 'UTF8'), r.last_token, coalesce(r.source, ''), r.granted_at, coalesce(w.number, 0), e.resource_id IS NOT NULL
FROM wanted AS r
LEFT JOIN writers AS w ON w.key = hashtextextended(r.resource_id COLLATE "C", 8604534342903230051)
LEFT JOIN wirefence.leases AS e ON e.resource_id = r.resource_id AND e.expires_at > clock_timestamp()
