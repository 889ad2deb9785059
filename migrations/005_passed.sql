-- Guards read at little cost for which resources the transaction was checked, by a proxy or
-- by another guard: the setting wirefence.passed lists marks until the transaction ends. It is
-- set as by SET LOCAL, so ROLLBACK TO SAVEPOINT removes the marks that were added after the
-- savepoint, as it releases the locks that were taken after it.
--
--   ,KEY,    the resource with that lock_key was checked, and its lock is held
--   ,vKEY,   the hash of the session variable when it was last read
--   ,sKEY,   a guard in shadow mode has noted the resource; for '', all further resources
--   ,bKEY,   for '': the session bypasses guards
--
-- Guards protect against programs that err, not against malice. A session can set the list by
-- hand, but a program that wants to write with the token of another finds the current token
-- in the error, too.
SET LOCAL search_path = pg_catalog, pg_temp;

-- name keeps the name of a table that was dropped. A dump has only the number of such a
-- table, and in the database where the dump is restored another table may have this number.
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

COMMENT ON TABLE wirefence.guards IS 'The tables that protect has guarded. Their triggers do the work; wirefence.guarded() compares the two.';

-- A check notes a resource only if a guard may ask for it, so other resources do not pay for
-- guards. Each check reads here which resources those are. A flag in resource_locks would do
-- it, too, but then protect would block every grant until it commits.
CREATE INDEX ON wirefence.guards (resource);
CREATE INDEX ON wirefence.guards (template) WHERE template;

-- any_guards reports whether a table was ever guarded in this database. The first protect
-- replaces it. As a constant it costs the checks in unguarded databases nothing.
CREATE FUNCTION wirefence.any_guards() RETURNS boolean
LANGUAGE sql STABLE
RETURN false;

-- has_passed reports whether the transaction was checked for a resource or, for another kind,
-- whether the list has this mark.
CREATE FUNCTION wirefence.has_passed(resource text, kind text DEFAULT '') RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN strpos(coalesce(current_setting('wirefence.passed', true), ''), concat(',', kind, wirefence.lock_key(resource), ',')) > 0;

-- passed_condition returns an SQL condition for the trigger of a row: the transaction was
-- checked for the resource, and the session variable has not changed since. name is an SQL
-- expression for the name of the resource, which may be null. The condition uses built-in
-- functions only, because it is evaluated for every row.
CREATE FUNCTION wirefence.passed_condition(name text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'CASE WHEN strpos(coalesce(current_setting(''wirefence.passed'', true), ''''), '','' || hashtextextended((' || name || ') COLLATE "C", 8604534342903230051) || '','') > 0'
        || ' THEN strpos(current_setting(''wirefence.passed'', true), '',v'' || hashtextextended(coalesce(current_setting(''wirefence.token'', true), ''''), 8604534342903230051) || '','') > 0'
        || ' ELSE false END'
$$;

-- note_passed adds marks to the list. The caller has checked the resources in this
-- transaction by the fence carried; null is the fence of the session variable. The value of
-- the variable is noted if it was the fence, and at the first check of the transaction: a
-- fence that overrides the variable from the start is valid until the variable changes. Only
-- the last value is kept, since a return to an earlier one may be a return to a former token.
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

-- may_be_guarded reports whether a guard may ask for a resource.
CREATE FUNCTION wirefence.may_be_guarded(resource text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT EXISTS (SELECT FROM wirefence.guards AS g WHERE g.template OR g.resource = may_be_guarded.resource) $$;

-- note_guarded notes those of the resources that guards may ask for. A check that was made
-- READ ONLY is none to rely on: it records no token, and RELEASE of a savepoint and the end of
-- a block with EXCEPTION make the transaction READ WRITE again. checked_rows has the rows; for
-- these, note_guarded only notes the value of the session variable.
CREATE FUNCTION wirefence.note_guarded(resources text[], carried text, rows boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    noted CONSTANT text[] := ARRAY(SELECT u.resource FROM unnest(resources) AS u(resource) WHERE wirefence.may_be_guarded(u.resource));
BEGIN
    IF (noted <> '{}' OR rows) AND current_setting('transaction_read_only') = 'off' THEN
        PERFORM wirefence.note_passed(noted, carried);
    END IF;
END
$$;
