-- The functions of the schema that have a comment: those that other programs may call.
SELECT format('wirefence.%s(%s)', p.proname, replace(regexp_replace(pg_get_function_arguments(p.oid), 'NULL::[a-z ]+(\[\])?', 'NULL', 'g'), 'timestamp with time zone', 'timestamptz')) AS signature,
       replace(pg_get_function_result(p.oid), 'timestamp with time zone', 'timestamptz') AS result,
       -- Everybody may call some functions that refuse callers who are not issuers, with a hint.
       CASE WHEN has_function_privilege('app', p.oid, 'EXECUTE') AND strpos(p.prosrc, 'require_issuer') = 0 THEN 'everybody' ELSE 'wirefence_issuer' END AS caller,
       has_function_privilege('issuer', p.oid, 'EXECUTE') AS issuers,
       d.description
FROM pg_proc AS p JOIN pg_description AS d ON d.objoid = p.oid AND d.classoid = 'pg_proc'::regclass
WHERE p.pronamespace = 'wirefence'::regnamespace
ORDER BY p.proname, p.pronargs
