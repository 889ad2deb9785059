SELECT l.last_token, coalesce(l.holder, ''), coalesce(l.source, '') FROM wirefence.resource_locks AS l WHERE l.resource_id = convert_from($1::bytea, 'UTF8')
