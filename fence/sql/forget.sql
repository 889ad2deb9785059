SELECT wirefence.forget(convert_from($1::bytea, 'UTF8'), $2::bigint)
