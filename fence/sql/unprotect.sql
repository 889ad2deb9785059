SELECT wirefence.unprotect(convert_from($1::bytea, 'UTF8')::regclass)
