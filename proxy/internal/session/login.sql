SELECT pg_catalog.current_setting('wirefence.token', true),
  CASE
    WHEN pg_catalog.to_regnamespace('wirefence') IS NULL THEN NULL
    WHEN NOT pg_catalog.has_schema_privilege(pg_catalog.to_regnamespace('wirefence')::pg_catalog.oid, 'USAGE') THEN 'denied'
    WHEN pg_catalog.to_regclass('wirefence.resource_locks') IS NULL
      OR pg_catalog.to_regprocedure('wirefence.check(pg_catalog.text,pg_catalog.text,pg_catalog.bool,pg_catalog.bool)') IS NULL
      OR pg_catalog.to_regprocedure('wirefence.proxy_hold(pg_catalog.int4,pg_catalog.text,pg_catalog.text,pg_catalog.text,pg_catalog.bool,pg_catalog.text)') IS NULL
      OR pg_catalog.to_regprocedure('wirefence.proxy_unhold(pg_catalog.int4,pg_catalog._int8)') IS NULL THEN 'incomplete'
    WHEN NOT (pg_catalog.has_function_privilege(pg_catalog.to_regprocedure('wirefence.check(pg_catalog.text,pg_catalog.text,pg_catalog.bool,pg_catalog.bool)')::pg_catalog.oid, 'EXECUTE')
      AND pg_catalog.has_function_privilege(pg_catalog.to_regprocedure('wirefence.proxy_hold(pg_catalog.int4,pg_catalog.text,pg_catalog.text,pg_catalog.text,pg_catalog.bool,pg_catalog.text)')::pg_catalog.oid, 'EXECUTE')
      AND pg_catalog.has_function_privilege(pg_catalog.to_regprocedure('wirefence.proxy_unhold(pg_catalog.int4,pg_catalog._int8)')::pg_catalog.oid, 'EXECUTE')) THEN 'denied'
    ELSE 'usable'
  END,
  pg_catalog.pg_backend_pid(),
  pg_catalog.encode(pg_catalog.convert_to(pg_catalog.current_database()::pg_catalog.text, 'SQL_ASCII'), 'hex'),
  pg_catalog.to_regclass('pg_catalog.pg_dist_node')
