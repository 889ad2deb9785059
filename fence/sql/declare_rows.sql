SELECT wirefence.declare_rows(convert_from($1::bytea, 'UTF8'), convert_from($2::bytea, 'UTF8')::regclass,
    ARRAY(SELECT convert_from(k.name, 'UTF8') FROM unnest($3::bytea[]) WITH ORDINALITY AS k(name, place) ORDER BY k.place),
    convert_from($4::bytea, 'UTF8'), convert_from($5::bytea, 'UTF8'), $6::boolean, nullif(convert_from($7::bytea, 'UTF8'), ''))
