-- Run with pg_catalog alone in the search_path.
-- The functions that must exist, by signature, and all others of the schema.
WITH wanted AS (
    SELECT w.signature, to_regprocedure(w.signature)::oid AS oid
    FROM unnest($1::text[]) AS w(signature)
), there AS (
    SELECT p.* FROM pg_proc AS p
    JOIN pg_namespace AS n ON n.oid = p.pronamespace AND n.nspname = 'wirefence'
)
SELECT coalesce(w.signature, ''),
       CASE WHEN p.oid IS NULL THEN ''
            ELSE 'wirefence.' || CASE WHEN p.proname ~ '^[a-z_][a-z0-9_]*$' THEN p.proname::text ELSE quote_ident(p.proname) END
                || '(' || array_to_string(ARRAY(SELECT format_type(a.type, NULL) FROM unnest(p.proargtypes) AS a(type)), ', ') || ')' END,
       coalesce(pg_get_userbyid(p.proowner), ''),
       coalesce(pg_get_function_sqlbody(p.oid), p.prosrc, ''),
       coalesce(p.prosqlbody IS NOT NULL, false), coalesce(p.prosecdef, false), coalesce(p.proisstrict, false),
       coalesce(p.provolatile, 'v')::text,
       ARRAY(SELECT c FROM unnest(p.proconfig) AS c)
FROM wanted AS w FULL JOIN there AS p ON p.oid = w.oid
ORDER BY 1, 2
