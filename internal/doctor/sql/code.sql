-- Functions of the application that name the fence's variable, or that release advisory locks.
SELECT p.oid::regprocedure::text AS name, s.text ~* 'advisory_unlock_(all|shared)' AS unlocks
FROM pg_proc AS p
CROSS JOIN LATERAL (SELECT concat(p.prosrc, pg_get_function_sqlbody(p.oid))) AS s(text)
WHERE p.pronamespace NOT IN ('pg_catalog'::regnamespace, 'wirefence'::regnamespace)
  AND s.text ~* 'wirefence\.token|advisory_unlock_(all|shared)'
ORDER BY 1
