SELECT coalesce((SELECT l.last_token FROM wirefence.resource_locks AS l WHERE l.resource_id = $1::text), 0)
