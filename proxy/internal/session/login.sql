SELECT pg_catalog.current_setting('wirefence.token', true),
  pg_catalog.to_regprocedure('wirefence.stored_code_interferes()'),
  pg_catalog.pg_backend_pid(),
  CASE WHEN pg_catalog.current_database()::pg_catalog.text COLLATE pg_catalog."C" OPERATOR(pg_catalog.~) '^[ -~]+$' THEN pg_catalog.current_database() END,
  EXISTS (SELECT FROM pg_catalog.pg_db_role_setting, pg_catalog.unnest(setconfig) AS setting
    WHERE setdatabase OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, (SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())])
      AND setrole OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, (SELECT oid FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) session_user)])
      AND pg_catalog.lower(setting) OPERATOR(pg_catalog.~~) 'wirefence.token=_%')
