SELECT wirefence.release(convert_from($1::bytea, 'UTF8'), $2::text)
