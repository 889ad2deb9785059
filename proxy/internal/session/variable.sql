SELECT pg_catalog.current_setting('wirefence.token', true)
