-- Run with pg_catalog alone in the search_path.
-- The facts about the schema wirefence that manifest.json has: an object, a property, its value.
WITH schema AS (
    SELECT n.* FROM pg_namespace AS n WHERE n.nspname = 'wirefence'
), functions AS (
    SELECT p.*, 'function wirefence.' || CASE WHEN p.proname ~ '^[a-z_][a-z0-9_]*$' THEN p.proname::text ELSE quote_ident(p.proname) END
               || '(' || array_to_string(ARRAY(SELECT format_type(a.type, NULL) FROM unnest(p.proargtypes) AS a(type)), ', ') || ')' AS object
    FROM pg_proc AS p JOIN schema ON schema.oid = p.pronamespace
    WHERE p.proname !~ '^row_(judge|claim|until|follow)_' -- those of the declared classes
), relations AS (
    SELECT c.*, format('table wirefence.%I', c.relname) AS object
    FROM pg_class AS c JOIN schema ON schema.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
), rights AS (
    SELECT object, proowner AS owner, coalesce(proacl, acldefault('f', proowner)) AS acl FROM functions
    UNION ALL
    SELECT object, relowner, relacl FROM relations
    UNION ALL
    SELECT r.object, r.relowner, a.attacl FROM relations AS r JOIN pg_attribute AS a ON a.attrelid = r.oid
    UNION ALL
    SELECT 'schema wirefence', nspowner, nspacl FROM schema
)
SELECT object, 'owner', CASE WHEN r.rolsuper AND proname IN ('recover_citus', 'tell_workers', 'at_coordinator') THEN 'wirefence_owner' ELSE r.rolname::text END -- a superuser owns these where there is Citus
FROM functions JOIN pg_roles AS r ON r.oid = proowner
UNION ALL
SELECT object, 'returns', pg_get_function_result(oid) FROM functions
UNION ALL
SELECT object, 'security', CASE WHEN prosecdef THEN 'definer' ELSE 'invoker' END FROM functions
UNION ALL -- a server with quote_all_identifiers has quoted the names when the function was created
SELECT object, 'settings', coalesce((SELECT string_agg(regexp_replace(c, '"([a-z_]+)"', E'\\1', 'g'), '; ' ORDER BY c COLLATE "C") FROM unnest(proconfig) AS c), 'none')
FROM functions
UNION ALL
SELECT object, 'behaviour', provolatile::text || CASE WHEN proisstrict THEN ' strict' ELSE '' END FROM functions
UNION ALL
SELECT object, 'body', md5(coalesce(pg_get_function_sqlbody(oid), prosrc)) FROM functions
UNION ALL
SELECT object, 'owner', pg_get_userbyid(nspowner) FROM schema, (VALUES ('schema wirefence')) AS name(object)
UNION ALL -- the sequence of an identity column belongs to the table
SELECT object, 'owner', pg_get_userbyid(relowner) FROM relations AS r
WHERE NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = r.oid AND d.deptype = 'i')
UNION ALL
SELECT object, 'policies', 'on' FROM relations WHERE relrowsecurity
UNION ALL
SELECT r.object, format('column %I', a.attname), format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
FROM relations AS r JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped WHERE r.relkind <> 'S'
UNION ALL -- from PostgreSQL 18 on, NOT NULL is a constraint of type n
SELECT r.object, format('constraint %I', c.conname), 'present'
FROM relations AS r JOIN pg_constraint AS c ON c.conrelid = r.oid AND c.contype <> 'n'
UNION ALL
SELECT r.object, format('trigger %I', t.tgname), CASE WHEN t.tgenabled IN ('D', 'R') THEN 'disabled' ELSE 'enabled' END
FROM relations AS r JOIN pg_trigger AS t ON t.tgrelid = r.oid AND NOT t.tgisinternal
UNION ALL
SELECT r.object, format('rule %I', w.rulename), 'present'
FROM relations AS r JOIN pg_rewrite AS w ON w.ev_class = r.oid AND w.rulename <> '_RETURN'
UNION ALL
SELECT r.object, format('index %s', i.indexrelid::regclass), 'not valid'
FROM relations AS r JOIN pg_index AS i ON i.indrelid = r.oid AND NOT i.indisvalid
UNION ALL -- the owner has all rights
SELECT DISTINCT r.object, 'right ' || a.privilege_type || ' to ' || CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END, 'granted'
FROM rights AS r, LATERAL aclexplode(r.acl) AS a
WHERE a.grantee <> r.owner AND (a.grantee = 0 OR pg_get_userbyid(a.grantee) <> 'wirefence_owner')
