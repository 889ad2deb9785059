RESET ROLE;
-- Only a superuser may carry out on workers of Citus what the coordinator has committed.
DO $$
DECLARE
    superuser name;
BEGIN
    SELECT r.rolname INTO superuser
    FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_roles AS r ON r.oid = e.extowner AND r.rolsuper
    WHERE e.extname = 'citus' AND (SELECT m.rolsuper FROM pg_catalog.pg_roles AS m WHERE m.rolname = current_user);
    IF FOUND AND pg_catalog.to_regprocedure('wirefence.recover_citus(integer[])') IS NOT NULL THEN
        EXECUTE pg_catalog.format('ALTER FUNCTION wirefence.recover_citus(integer[]) OWNER TO %I', superuser);
        GRANT EXECUTE ON FUNCTION wirefence.recover_citus(integer[]) TO wirefence_owner;
    END IF;
END
$$;
