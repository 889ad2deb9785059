SELECT r.token, coalesce(nullif(current_setting('wirefence.ended', true), ''), '[]')::jsonb
FROM (SELECT wirefence.revoke(convert_from($1::bytea, 'UTF8')) AS token OFFSET 0) AS r
