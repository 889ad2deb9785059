SELECT pg_catalog.current_setting('wirefence.token', true), pg_catalog.to_regprocedure('wirefence.check(text,text,boolean)')
