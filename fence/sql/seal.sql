SELECT wirefence.seal(convert_from($1::bytea, 'UTF8'), $2::bigint, nullif($3::text, ''), nullif($4::text, ''))
