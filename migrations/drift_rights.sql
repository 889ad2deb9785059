-- Run with pg_catalog alone in the search_path.
-- Rights that differ from the migrations' grants: ($1 right, $2 object, $3 role). The owner,
-- $4, has all rights.
WITH wanted AS (
    SELECT w.privilege, split_part(w.object, ' ', 1) AS kind, w.role,
           CASE WHEN w.object LIKE 'FUNCTION %' THEN to_regprocedure(substr(w.object, 10))::oid
                WHEN w.object LIKE 'TABLE %' THEN to_regclass(substr(w.object, 7))::oid
                ELSE to_regnamespace(substr(w.object, 8))::oid END AS oid
    FROM unnest($1::text[], $2::text[], $3::text[]) AS w(privilege, object, role)
), schema AS (
    SELECT n.* FROM pg_namespace AS n WHERE n.nspname = 'wirefence'
), objects AS (
    SELECT 'FUNCTION' AS kind, p.oid, p.proowner AS owner, coalesce(p.proacl, acldefault('f', p.proowner)) AS acl,
           'wirefence.' || p.proname || '(' || array_to_string(ARRAY(SELECT format_type(a.type, NULL) FROM unnest(p.proargtypes) AS a(type)), ', ')
               || ')' AS name
    FROM pg_proc AS p JOIN schema ON schema.oid = p.pronamespace
    UNION ALL
    SELECT 'TABLE', c.oid, c.relowner, c.relacl, format('wirefence.%I', c.relname)
    FROM pg_class AS c JOIN schema ON schema.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    UNION ALL
    SELECT 'TABLE', c.oid, c.relowner, a.attacl, format('wirefence.%I', c.relname)
    FROM pg_class AS c JOIN schema ON schema.oid = c.relnamespace
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attacl IS NOT NULL
    UNION ALL
    SELECT 'SCHEMA', schema.oid, schema.nspowner, schema.nspacl, 'wirefence' FROM schema
), held AS (
    SELECT DISTINCT o.kind, o.oid, o.name, a.privilege_type AS privilege,
           CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role
    FROM objects AS o, LATERAL aclexplode(o.acl) AS a
    WHERE a.grantee <> o.owner AND (a.grantee = 0 OR pg_get_userbyid(a.grantee) <> $4::text)
)
SELECT w.privilege, w.kind || ' ' || o.name, w.role, false
FROM wanted AS w JOIN objects AS o ON o.kind = w.kind AND o.oid = w.oid
WHERE NOT EXISTS (SELECT FROM held AS h WHERE h.kind = w.kind AND h.oid = w.oid AND h.privilege = w.privilege AND h.role = w.role)
UNION
SELECT h.privilege, h.kind || ' ' || h.name, h.role, true
FROM held AS h
WHERE NOT EXISTS (SELECT FROM wanted AS w WHERE w.kind = h.kind AND w.oid = h.oid AND w.privilege = h.privilege AND w.role = h.role)
ORDER BY 4, 2, 3, 1
