RESET ROLE;
-- Only a superuser may ask all nodes of Citus, and carry out there what was committed.
DO $$
DECLARE
    superuser name;
    callable regprocedure;
BEGIN
    SELECT r.rolname INTO superuser
    FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_roles AS r ON r.oid = e.extowner AND r.rolsuper
    WHERE e.extname = 'citus' AND (SELECT m.rolsuper FROM pg_catalog.pg_roles AS m WHERE m.rolname = current_user);
    IF FOUND THEN
        FOR callable IN
            SELECT p.oid FROM pg_catalog.pg_proc AS p
            WHERE p.pronamespace = pg_catalog.to_regnamespace('wirefence') AND p.proname IN ('recover_citus', 'tell_workers', 'at_coordinator')
        LOOP
            EXECUTE pg_catalog.format('ALTER FUNCTION %s OWNER TO %I', callable, superuser);
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO wirefence_owner', callable);
        END LOOP;
    END IF;
    IF pg_catalog.current_setting('wirefence.citus', true) = 'nodes' THEN
        IF superuser IS NULL THEN
            RAISE feature_not_supported USING
                MESSAGE = 'the nodes of Citus cannot have the tokens here',
                HINT = 'As a superuser, run wirefence migrate in the database that has the extension.';
        END IF;
        PERFORM wirefence.grant_on_nodes();
    END IF;
END
$$;
