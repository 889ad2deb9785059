SELECT EXISTS (
  SELECT FROM pg_catalog.pg_proc AS p
  WHERE p.pronamespace OPERATOR(pg_catalog.<>) 'pg_catalog'::pg_catalog.regnamespace::pg_catalog.oid
    AND p.pronamespace OPERATOR(pg_catalog.<>) COALESCE(pg_catalog.to_regnamespace('wirefence')::pg_catalog.oid, 0::pg_catalog.oid)
    AND (p.prosrc OPERATOR(pg_catalog.~*) 'advisory_unlock_(all|shared)'
      OR p.prosqlbody::pg_catalog.text OPERATOR(pg_catalog.~) ANY (ARRAY(
        SELECT pg_catalog.concat('funcid ', u.oid, ' ') FROM pg_catalog.pg_proc AS u
        WHERE u.pronamespace OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace::pg_catalog.oid
          AND (u.proname OPERATOR(pg_catalog.=) 'pg_advisory_unlock_all' OR u.proname OPERATOR(pg_catalog.=) 'pg_advisory_unlock_shared')))))
