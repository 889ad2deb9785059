-- A revocation clears granted_at. The lease may still have its row then.
SELECT CASE WHEN revoked.yes THEN false ELSE wirefence.renew(r.name, $2::text, $3::bigint * interval '1 microsecond') END
FROM (SELECT convert_from($1::bytea, 'UTF8')) AS r (name),
     LATERAL (SELECT EXISTS (SELECT FROM wirefence.resource_locks AS l WHERE l.resource_id = r.name AND l.granted_at IS NULL)) AS revoked (yes)
