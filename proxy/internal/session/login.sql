SELECT pg_catalog.current_setting('wirefence.token', true),
  pg_catalog.to_regprocedure('wirefence.stored_code_interferes()'),
  pg_catalog.pg_backend_pid(),
  pg_catalog.encode(pg_catalog.convert_to(pg_catalog.current_database()::pg_catalog.text, 'SQL_ASCII'), 'hex'),
  pg_catalog.to_regclass('pg_catalog.pg_dist_node')
