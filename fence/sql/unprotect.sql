SELECT CASE WHEN to_regclass(convert_from($1::bytea, 'UTF8')) IS NULL THEN wirefence.forget_guard(convert_from($1::bytea, 'UTF8'))
            ELSE wirefence.unprotect(convert_from($1::bytea, 'UTF8')::regclass) END
