SELECT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting, pg_catalog.unnest(setconfig) AS setting
  WHERE setdatabase OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, (SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())])
    AND setrole OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, (SELECT oid FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) session_user)])
    AND pg_catalog.lower(setting) OPERATOR(pg_catalog.~~) 'wirefence.token=_%')
