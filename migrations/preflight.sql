-- The statements for roles, rights and the schema that the numbered files need and that are
-- missing: one a row, in order, whether the current role may run it, and whether it is optional.
-- Roles belong to the whole cluster. $1 says that the identity of the server is not needed.
WITH me AS (
    SELECT r.oid, r.rolname, r.rolsuper, r.rolcreaterole,
           pg_catalog.current_setting('server_version_num')::pg_catalog.int4 >= 160000 AS modern
    FROM pg_catalog.pg_roles AS r
    WHERE r.rolname = current_user
), there AS (
    SELECT me.*, owner.oid AS owner, issuer.oid AS issuer, bypass.oid AS bypass, schema.oid AS schema, schema.nspowner AS schema_owner,
           signal.oid AS signal, stats.oid AS stats
    FROM me
    LEFT JOIN pg_catalog.pg_roles AS owner ON owner.rolname = 'wirefence_owner'
    LEFT JOIN pg_catalog.pg_roles AS issuer ON issuer.rolname = 'wirefence_issuer'
    LEFT JOIN pg_catalog.pg_roles AS bypass ON bypass.rolname = 'wirefence_bypass'
    LEFT JOIN pg_catalog.pg_roles AS signal ON signal.rolname = 'pg_signal_backend'
    LEFT JOIN pg_catalog.pg_roles AS stats ON stats.rolname = 'pg_read_all_stats'
    LEFT JOIN pg_catalog.pg_namespace AS schema ON schema.nspname = 'wirefence'
), asked AS (
    -- Functions that the server lacks cannot be granted, and don't count.
    SELECT coalesce(pg_catalog.bool_and(pg_catalog.has_function_privilege(r.name, f.oid, 'EXECUTE')), true) AS permitted
    FROM (VALUES (pg_catalog.to_regprocedure('pg_catalog.pg_control_system()')),
                 (pg_catalog.to_regprocedure('pg_catalog.pg_current_wal_lsn()')),
                 (pg_catalog.to_regprocedure('pg_catalog.pg_walfile_name(pg_catalog.pg_lsn)'))) AS f(oid),
         (SELECT CASE WHEN owner IS NULL THEN 'public'::pg_catalog.name ELSE 'wirefence_owner' END FROM there
          UNION ALL SELECT CASE WHEN issuer IS NULL THEN 'public'::pg_catalog.name ELSE 'wirefence_issuer' END FROM there) AS r(name)
), rights AS (
    -- From 16 on, CREATEROLE alone cannot grant a role: that needs ADMIN OPTION, which the
    -- creator of a role gets, but without SET.
    SELECT there.*,
           rolsuper OR rolcreaterole AS may_create,
           rolsuper OR rolcreaterole AND (NOT modern OR owner IS NULL)
               OR coalesce(pg_catalog.pg_has_role(oid, owner, 'MEMBER WITH ADMIN OPTION'), false) AS may_grant_owner,
           rolsuper OR rolcreaterole AND NOT modern
               OR pg_catalog.pg_has_role(oid, signal, 'MEMBER WITH ADMIN OPTION') AS may_grant_signal,
           rolsuper OR rolcreaterole AND NOT modern
               OR pg_catalog.pg_has_role(oid, stats, 'MEMBER WITH ADMIN OPTION') AS may_grant_stats,
           rolsuper OR coalesce(pg_catalog.pg_has_role(oid, owner, CASE WHEN modern THEN 'SET' ELSE 'MEMBER' END), false) AS becomes_owner,
           pg_catalog.has_database_privilege(oid, pg_catalog.current_database(), 'CREATE') AS may_create_schema
    FROM there
)
SELECT step.statement, step.permitted, step.place = 6 AS optional
FROM rights, LATERAL (VALUES
    (1, 'CREATE ROLE wirefence_owner NOLOGIN', may_create, owner IS NULL),
    (2, 'CREATE ROLE wirefence_issuer NOLOGIN', may_create, issuer IS NULL),
    (3, 'CREATE ROLE wirefence_bypass NOLOGIN', may_create, bypass IS NULL),
    (4, pg_catalog.format('GRANT wirefence_owner TO %I', rolname)
        || CASE WHEN modern THEN ' WITH SET TRUE, INHERIT TRUE' ELSE '' END, may_grant_owner, NOT becomes_owner),
    (5, 'GRANT pg_signal_backend TO wirefence_owner', may_grant_signal,
        NOT coalesce(pg_catalog.pg_has_role(owner, signal, 'USAGE'), false)),
    (6, 'GRANT pg_read_all_stats TO wirefence_owner', may_grant_stats,
        NOT coalesce(pg_catalog.pg_has_role(owner, stats, 'USAGE'), false)),
    (7, 'GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system(), pg_catalog.pg_current_wal_lsn(), pg_catalog.pg_walfile_name(pg_lsn)'
        || ' TO wirefence_owner, wirefence_issuer', rolsuper, NOT $1 AND NOT (SELECT asked.permitted FROM asked)),
    (8, pg_catalog.format('GRANT CREATE ON DATABASE %I TO %I', pg_catalog.current_database(), rolname), false,
        schema IS NULL AND NOT may_create_schema),
    (9, 'ALTER SCHEMA wirefence OWNER TO wirefence_owner', false, schema_owner <> owner OR schema IS NOT NULL AND owner IS NULL),
    (10, 'CREATE SCHEMA wirefence AUTHORIZATION wirefence_owner', may_create_schema, schema IS NULL AND may_create_schema)
) AS step(place, statement, permitted, wanted)
WHERE step.wanted
ORDER BY step.place
