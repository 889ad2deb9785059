SELECT pg_catalog.current_database(),
  pg_catalog.to_regnamespace('wirefence') IS NOT NULL
    AND pg_catalog.has_schema_privilege(pg_catalog.to_regnamespace('wirefence')::pg_catalog.oid, 'USAGE')
    AND pg_catalog.to_regprocedure('wirefence.proxy_unhold(pg_catalog.int4,pg_catalog._int8)') IS NOT NULL
