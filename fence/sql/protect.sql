SELECT wirefence.protect(convert_from($1::bytea, 'UTF8')::regclass, convert_from($2::bytea, 'UTF8'), $3::boolean)
