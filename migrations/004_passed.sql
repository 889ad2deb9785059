-- What a transaction was checked for. A guard must know that at little cost, be it
-- by a proxy's check or by another guard. Two things say it together. The variable
-- wirefence.passed lists marks until the transaction ends, and a rollback to a savepoint
-- takes back what was added behind it:
--
--   ,KEY,    the resource with that lock_key was checked, and its lock is held
--   ,vKEY,   what the session variable held when it was last looked at, by its hash
--   ,sKEY,   a guard in shadow mode has noted the resource, or '' for all further ones
--   ,bKEY,   of '': the session bypasses guards
--
-- And the session's last value of the sequence wirefence.passed, which only the owner's
-- functions can set, is a hash of that list and of the time at which the transaction
-- began. A list that was set by hand, or that is another transaction's, doesn't agree, and
-- the guard checks anew. So doesn't one behind which a rollback to a savepoint has taken
-- marks: of that, what has its lock still is kept, and what takes none.
--
-- All this is for programs that err. The hash is no seal: who means to can find a list
-- with the same one, or set by hand the list that it had behind a savepoint. Nothing that
-- a session can't set undoes itself in a rollback, short of a row; and who means to write
-- with a token that isn't its own finds the current one in the error.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Sequences are logged; where they need not be, this one isn't.
CREATE SEQUENCE wirefence.passed MINVALUE -9223372036854775808 START 0;

DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER SEQUENCE wirefence.passed SET UNLOGGED;
    END IF;
END
$$;
GRANT SELECT ON SEQUENCE wirefence.passed TO PUBLIC;

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

-- passed_agrees reports whether the list is what the owner's functions have made it in
-- this transaction. There is one.
CREATE FUNCTION wirefence.passed_agrees() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT currval('wirefence.passed') = interval_hash_extended(now() - timestamptz '1970-01-01 00:00:00+00',
        hashtextextended(current_setting('wirefence.passed', true), 0))
$$;

-- has_passed reports whether the transaction was checked for a resource; of another kind
-- of mark, whether that is there.
CREATE FUNCTION wirefence.has_passed(resource text, kind text DEFAULT '') RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN strpos(coalesce(current_setting('wirefence.passed', true), ''), concat(',', kind, wirefence.lock_key(resource), ',')) > 0
    THEN wirefence.passed_agrees() ELSE false END;

-- passed_condition is the SQL by which a row's trigger finds that the
-- transaction was checked for the name, itself an SQL expression, and that the session
-- variable hasn't changed since. It is all built-in functions, for it is evaluated for
-- every row. A name may be null.
CREATE FUNCTION wirefence.passed_condition(name text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'CASE WHEN strpos(coalesce(current_setting(''wirefence.passed'', true), ''''), '','' || hashtextextended((' || name || ') COLLATE "C", 8604534342903230051) || '','') > 0'
        || ' AND strpos(current_setting(''wirefence.passed'', true), '',v'' || hashtextextended(coalesce(current_setting(''wirefence.token'', true), ''''), 8604534342903230051) || '','') > 0'
        || ' THEN currval(''wirefence.passed''::regclass) = interval_hash_extended(now() - timestamptz ''1970-01-01 00:00:00+00'','
        || ' hashtextextended(current_setting(''wirefence.passed'', true), 0)) ELSE false END'
$$;

-- set_passed makes a list the transaction's.
CREATE FUNCTION wirefence.set_passed(list text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT setval('wirefence.passed', interval_hash_extended(now() - timestamptz '1970-01-01 00:00:00+00',
        hashtextextended(set_config('wirefence.passed', list, true), 0)))
$$;

-- mend_passed takes out of a list that doesn't agree what the transaction holds no lock
-- for, unless it needs none, as in shadow mode.
CREATE FUNCTION wirefence.mend_passed() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(current_setting('wirefence.passed', true), '') <> '' AND NOT wirefence.passed_agrees() THEN
        PERFORM wirefence.set_passed(',' || coalesce(string_agg(m.mark || ',', '' ORDER BY m.place), ''))
        FROM string_to_table(current_setting('wirefence.passed', true), ',') WITH ORDINALITY AS m(mark, place)
        WHERE m.mark ~ '^v' OR m.mark IN (SELECT h.key::text FROM wirefence.lock_holders AS h WHERE h.pid = pg_backend_pid())
              OR m.mark IN (SELECT wirefence.lock_key(l.resource_id)::text FROM wirefence.resource_locks AS l WHERE l.mode = 'shadow');
    END IF;
END
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
    list text;
    resource text;
    mark text;
BEGIN
    PERFORM wirefence.mend_passed();
    list := coalesce(nullif(current_setting('wirefence.passed', true), ''), ',');
    IF kind = '' AND (carried IS NULL OR carried = variable OR strpos(list, ',v') = 0) THEN
        list := regexp_replace(list, ',v-?[0-9]+,', ',') || 'v' || wirefence.lock_key(variable) || ',';
    END IF;
    FOREACH resource IN ARRAY resources LOOP
        mark := concat(kind, wirefence.lock_key(resource), ',');
        IF strpos(list, ',' || mark) = 0 THEN
            list := list || mark;
        END IF;
    END LOOP;
    PERFORM wirefence.set_passed(list);
    RETURN true;
END
$$;

-- note_guarded notes those of the resources that guards may ask for.
CREATE FUNCTION wirefence.note_guarded(resources text[], carried text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    noted CONSTANT text[] := ARRAY(SELECT u.resource FROM unnest(resources) AS u(resource)
                                   WHERE EXISTS (SELECT FROM wirefence.guards AS g WHERE g.template OR g.resource = u.resource));
BEGIN
    IF noted <> '{}' AND current_setting('transaction_read_only') = 'off' THEN
        PERFORM wirefence.note_passed(noted, carried);
    END IF;
END
$$;
