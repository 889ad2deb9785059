SELECT to_jsonb(h)
FROM wirefence.history(convert_from($1::bytea, 'UTF8'), $2::timestamptz, $3::text[], $4::integer) AS h
