SELECT a.token, coalesce(a.held_by, ''),
       coalesce((extract(epoch FROM a.expires_at - clock_timestamp()) * 1000000)::bigint, 0)
FROM wirefence.acquire(convert_from($1::bytea, 'UTF8'), $2::text, $3::bigint * interval '1 microsecond', $4::text) AS a
