SELECT convert_to(s.resource, 'UTF8'), s.last_token, coalesce(l.source, ''), l.must_name_source, coalesce(s.holder, ''), s.granted_at,
       s.advance, s.reuse, (extract(epoch FROM s.preempt_after) * 1000000)::bigint, s.writers, s.mode,
       s.failover, s.former
FROM wirefence.status() AS s
JOIN wirefence.resource_locks AS l ON l.resource_id = s.resource
WHERE ($1::bytea IS NULL OR s.resource COLLATE "C" > convert_from($1::bytea, 'UTF8'))
  AND ($2::bytea IS NULL OR s.resource = convert_from($2::bytea, 'UTF8'))
ORDER BY s.resource COLLATE "C"
LIMIT $3::bigint
