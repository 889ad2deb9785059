SELECT l.holder, ceil(extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint
FROM wirefence.leases AS l
WHERE l.resource_id = convert_from($1::bytea, 'UTF8') AND l.expires_at > clock_timestamp()
