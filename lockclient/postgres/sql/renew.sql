SELECT wirefence.renew(convert_from($1::bytea, 'UTF8'), $2::text, $3::bigint * interval '1 microsecond')
