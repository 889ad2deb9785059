-- A migration such as a release may bring: it defines each function anew, and adds a column, a view and a function.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'wirefence'::regnamespace AND prokind = 'f' LOOP
        EXECUTE pg_get_functiondef(f);
    END LOOP;
END
$$;

-- In the order in which acquire takes them, or it would begin again for many grants.
ALTER TABLE wirefence.leases ADD COLUMN added text;
ALTER TABLE wirefence.resource_locks ADD COLUMN added text;
CREATE VIEW wirefence.added AS SELECT resource_id, added FROM wirefence.resource_locks;
CREATE FUNCTION wirefence.added() RETURNS integer LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$ SELECT 1 $$;
