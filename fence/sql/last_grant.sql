SELECT l.last_token, coalesce(l.holder, ''), coalesce(l.source, ''),
       CASE WHEN pg_is_in_recovery() OR l.pinned_to IS NULL THEN false ELSE l.pinned_to <> wirefence.identity() END
FROM wirefence.resource_locks AS l WHERE l.resource_id = convert_from($1::bytea, 'UTF8')
