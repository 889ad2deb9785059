SELECT wirefence.drop_rows(convert_from($1::bytea, 'UTF8'))
