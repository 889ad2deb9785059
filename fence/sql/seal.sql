SELECT wirefence.seal($1::text, $2::bigint, nullif($3::text, ''))
