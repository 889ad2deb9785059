-- Removes Wirefence from this database: the schema with everything that depends on it, which
-- guards do, and the roles unless another database has rights or objects of theirs. What a role
-- has been granted here goes with it; if it owns anything else, nothing is removed.
DO $$
DECLARE
    role name;
    owned text;
BEGIN
    DROP SCHEMA IF EXISTS wirefence CASCADE;
    FOR role IN -- that has rights or objects here
        SELECT DISTINCT r.rolname FROM pg_catalog.pg_shdepend AS s
        JOIN pg_catalog.pg_roles AS r ON s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND r.oid = s.refobjid
        WHERE r.rolname IN ('wirefence_owner', 'wirefence_issuer', 'wirefence_bypass')
          AND s.dbid IN (0, (SELECT b.oid FROM pg_catalog.pg_database AS b WHERE b.datname = pg_catalog.current_database()))
    LOOP
        SELECT pg_catalog.pg_describe_object(s.classid, s.objid, s.objsubid) INTO owned
        FROM pg_catalog.pg_shdepend AS s
        WHERE s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND s.refobjid = role::pg_catalog.regrole
          AND s.dbid = (SELECT b.oid FROM pg_catalog.pg_database AS b WHERE b.datname = pg_catalog.current_database())
          AND s.deptype = 'o' AND s.classid <> 'pg_catalog.pg_default_acl'::pg_catalog.regclass
        LIMIT 1;
        IF FOUND THEN
            RAISE dependent_objects_still_exist USING
                MESSAGE = pg_catalog.format('role %I owns %s, which is not Wirefence''s', role, owned),
                HINT = 'Give it another owner, and try again.';
        END IF;
        IF NOT pg_catalog.pg_has_role(role, 'USAGE') THEN
            EXECUTE pg_catalog.format('GRANT %I TO CURRENT_USER', role);
        END IF;
        EXECUTE pg_catalog.format('DROP OWNED BY %I', role);
    END LOOP;
    IF EXISTS (SELECT FROM pg_catalog.pg_shdepend AS s JOIN pg_catalog.pg_roles AS r ON r.oid = s.refobjid
               WHERE s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND s.dbid <> 0
                 AND r.rolname IN ('wirefence_owner', 'wirefence_issuer', 'wirefence_bypass')) THEN
        RETURN;
    END IF;
    DROP ROLE IF EXISTS wirefence_owner, wirefence_issuer, wirefence_bypass;
END
$$
