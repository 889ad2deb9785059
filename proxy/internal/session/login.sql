SELECT pg_catalog.current_setting('wirefence.token', true), pg_catalog.to_regprocedure('wirefence.check(pg_catalog.text,pg_catalog.text,pg_catalog.bool)'), pg_catalog.pg_backend_pid()
