SELECT convert_to(l.resource_id, 'UTF8'), l.last_token, coalesce(l.holder, ''), l.granted_at, l.mode, l.updated_at
FROM wirefence.resource_locks AS l
WHERE l.updated_at >= $1::timestamptz
ORDER BY l.updated_at DESC
LIMIT $2::bigint
