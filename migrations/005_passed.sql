-- What a transaction was checked for. A guard must know that at little cost, be it
-- by a proxy's check or by another guard: the setting wirefence.passed lists marks until
-- the transaction ends. It is set as by SET LOCAL, so a rollback to a savepoint takes back
-- what was added behind it, as it gives back the locks that were taken there.
--
--   ,KEY,    the resource with that lock_key was checked, and its lock is held
--   ,vKEY,   what the session variable held when it was last looked at, by its hash
--   ,sKEY,   a guard in shadow mode has noted the resource, or '' for all further ones
--   ,bKEY,   of '': the session bypasses guards
--
-- This is for programs that err. A session can set the list by hand; but whoever means
-- to write with a token that isn't its own finds the current one in the error.
SET LOCAL search_path = pg_catalog, pg_temp;

-- name keeps the name of a table that has gone. A dump has only the number of such a
-- table, which another may have where the dump is restored.
CREATE TABLE wirefence.guards (
    relation     regclass NOT NULL,
    name         text NOT NULL,
    resource     text COLLATE "C" NOT NULL,
    template     boolean NOT NULL,
    shadow       boolean NOT NULL,
    protected_by text NOT NULL,
    protected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (relation, name)
);

COMMENT ON TABLE wirefence.guards IS 'Which tables are to be guarded. What stands guard are their triggers; wirefence.guarded() compares the two.';

-- Only checks of resources that a guard may ask for leave a note: others need not
-- pay for it. Which those are each check reads here: were it said in the rows of
-- resource_locks, then a protect would hold up every grant until it has committed.
CREATE INDEX ON wirefence.guards (resource);
CREATE INDEX ON wirefence.guards (template) WHERE template;

-- any_guards reports whether a table was ever guarded here. The first protect
-- replaces it: as a constant it costs the checks of all others nothing.
CREATE FUNCTION wirefence.any_guards() RETURNS boolean
LANGUAGE sql STABLE
RETURN false;

-- has_passed reports whether the transaction was checked for a resource; of another kind
-- of mark, whether that is there.
CREATE FUNCTION wirefence.has_passed(resource text, kind text DEFAULT '') RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN strpos(coalesce(current_setting('wirefence.passed', true), ''), concat(',', kind, wirefence.lock_key(resource), ',')) > 0;

-- passed_condition is the SQL by which a row's trigger finds that the
-- transaction was checked for the name, itself an SQL expression, and that the session
-- variable hasn't changed since. It is all built-in functions, for it is evaluated for
-- every row. A name may be null.
CREATE FUNCTION wirefence.passed_condition(name text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'CASE WHEN strpos(coalesce(current_setting(''wirefence.passed'', true), ''''), '','' || hashtextextended((' || name || ') COLLATE "C", 8604534342903230051) || '','') > 0'
        || ' THEN strpos(current_setting(''wirefence.passed'', true), '',v'' || hashtextextended(coalesce(current_setting(''wirefence.token'', true), ''''), 8604534342903230051) || '','') > 0'
        || ' ELSE false END'
$$;

-- note_passed adds marks to the list. The caller has checked the resources in this
-- transaction by the fence that is carried, null for the session variable's. What that
-- holds is noted where it was the fence, and at the first check: what overrides it from
-- the start counts whatever it holds, until it changes. Only the last one is kept, since
-- to go back to an earlier one may be to go back to a former token.
CREATE FUNCTION wirefence.note_passed(resources text[], carried text DEFAULT NULL, kind text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    variable CONSTANT text := coalesce(current_setting('wirefence.token', true), '');
    list text := coalesce(nullif(current_setting('wirefence.passed', true), ''), ',');
    resource text;
    mark text;
BEGIN
    IF kind = '' AND (carried IS NULL OR carried = variable OR strpos(list, ',v') = 0) THEN
        list := regexp_replace(list, ',v-?[0-9]+,', ',') || 'v' || wirefence.lock_key(variable) || ',';
    END IF;
    FOREACH resource IN ARRAY resources LOOP
        mark := concat(kind, wirefence.lock_key(resource), ',');
        IF strpos(list, ',' || mark) = 0 THEN
            list := list || mark;
        END IF;
    END LOOP;
    PERFORM set_config('wirefence.passed', list, true);
    RETURN true;
END
$$;

-- guards_ask_for reports whether a guard may ask for a resource.
CREATE FUNCTION wirefence.guards_ask_for(resource text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT EXISTS (SELECT FROM wirefence.guards AS g WHERE g.template OR g.resource = guards_ask_for.resource) $$;

-- note_guarded notes those of the resources that guards may ask for.
CREATE FUNCTION wirefence.note_guarded(resources text[], carried text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    noted CONSTANT text[] := ARRAY(SELECT u.resource FROM unnest(resources) AS u(resource) WHERE wirefence.guards_ask_for(u.resource));
BEGIN
    IF noted <> '{}' THEN
        PERFORM wirefence.note_passed(noted, carried);
    END IF;
END
$$;
