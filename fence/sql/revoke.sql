SELECT r.token, coalesce(nullif(current_setting('wirefence.ended', true), ''), '[]')::jsonb
FROM (SELECT set_config('wirefence.reason', $2::text, true) AS reason OFFSET 0) AS s,
     LATERAL (SELECT wirefence.revoke(convert_from($1::bytea, 'UTF8')) AS token WHERE s.reason IS NOT NULL OFFSET 0) AS r
