SELECT wirefence.revoke(convert_from($1::bytea, 'UTF8'))
