-- Returns why the lease is lost, null if it isn't.
SELECT CASE WHEN l.former OR coalesce(l.last_token, 0) < t.token THEN 'failover'
    WHEN l.last_token > t.token AND l.holder IS NULL THEN 'revoked'
    WHEN l.last_token > t.token OR NOT wirefence.renew(t.resource, $3, make_interval(secs => $4)) THEN 'lost' END
FROM (SELECT $1, $2) AS t (resource, token)
LEFT JOIN (SELECT *, NOT pg_is_in_recovery() AND pinned_to <> wirefence.identity() AS former FROM wirefence.resource_locks) AS l
     ON l.resource_id = t.resource
