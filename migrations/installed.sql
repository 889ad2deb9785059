-- What Wirefence has in this database and in its server, one thing a row. It reads catalogs
-- alone, so that it also works where a migration or a restore has left only a part.
WITH ours AS (
    SELECT r.oid, r.rolname FROM pg_catalog.pg_roles AS r WHERE r.rolname IN ('wirefence_owner', 'wirefence_issuer', 'wirefence_bypass')
), dependent AS (
    SELECT DISTINCT d.classid, d.objid, t.tgrelid
    FROM pg_catalog.pg_depend AS d
    LEFT JOIN pg_catalog.pg_trigger AS t ON d.classid = 'pg_catalog.pg_trigger'::pg_catalog.regclass AND t.oid = d.objid
    WHERE d.deptype = 'n' AND (
        d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass
            AND d.refobjid IN (SELECT p.oid FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = pg_catalog.to_regnamespace('wirefence'))
        OR d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
            AND d.refobjid IN (SELECT c.oid FROM pg_catalog.pg_class AS c WHERE c.relnamespace = pg_catalog.to_regnamespace('wirefence')))
)
SELECT thing.kind, thing.name
FROM (
    SELECT 1, 'guard', d.tgrelid::pg_catalog.regclass::pg_catalog.text FROM dependent AS d
    JOIN pg_catalog.pg_class AS c ON c.oid = d.tgrelid AND c.relnamespace <> pg_catalog.to_regnamespace('wirefence')
    UNION
    SELECT 2, 'dependent', i.type || ' ' || i.identity FROM dependent AS d, LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, 0) AS i
    WHERE d.tgrelid IS NULL AND i.schema IS DISTINCT FROM 'wirefence' AND i.identity NOT LIKE '% wirefence.%'
    UNION ALL
    SELECT 3, 'schema', n.nspname FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'wirefence'
    UNION ALL
    SELECT 4, 'role', ours.rolname FROM ours
    UNION
    SELECT 5, 'elsewhere', b.datname FROM pg_catalog.pg_shdepend AS s
    JOIN ours ON s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND ours.oid = s.refobjid
    JOIN pg_catalog.pg_database AS b ON b.oid = s.dbid AND b.datname <> pg_catalog.current_database()
    UNION
    SELECT 6, 'member', m.member::pg_catalog.regrole::pg_catalog.text FROM pg_catalog.pg_auth_members AS m
    JOIN ours ON ours.oid = m.roleid
    WHERE m.member <> current_user::pg_catalog.regrole
) AS thing(place, kind, name)
ORDER BY thing.place, thing.name
