SELECT pg_catalog.current_setting('wirefence.token', true),
  CASE
    WHEN n IS NULL THEN NULL
    WHEN NOT pg_catalog.has_schema_privilege(n, 'USAGE') THEN 'denied'
    ELSE (
      SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.<>) 3 THEN 'incomplete'
        WHEN pg_catalog.bool_and(pg_catalog.has_function_privilege(oid, 'EXECUTE')) THEN 'usable' ELSE 'denied' END
      FROM pg_catalog.pg_proc
      WHERE proname OPERATOR(pg_catalog.=) ANY ('{check,proxy_hold,proxy_unhold}'::pg_catalog.name[]) AND pronamespace OPERATOR(pg_catalog.=) n AND pronargs OPERATOR(pg_catalog.>) 1
        AND pg_catalog.to_regclass('wirefence.resource_locks') IS NOT NULL)
  END,
  pg_catalog.pg_backend_pid(),
  pg_catalog.encode(pg_catalog.convert_to(pg_catalog.current_database()::pg_catalog.text, 'SQL_ASCII'), 'hex'),
  pg_catalog.to_regclass('pg_catalog.pg_dist_node'),
  pg_catalog.inet_server_addr()
FROM (SELECT pg_catalog.to_regnamespace('wirefence')::pg_catalog.oid AS n OFFSET 0) AS s
