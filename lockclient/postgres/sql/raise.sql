SELECT wirefence.seal(convert_from($1::bytea, 'UTF8'), $2::bigint, NULL, 'postgres')
